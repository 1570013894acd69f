"""Compiling callables, with a cache that outlives the process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from probmargin.core.fusing import allow_many_compilations

CompileMode = Literal["default", "max-autotune", "off"]


def use_persistent_cache() -> None:
    """Keep compiled kernels in the user's cache folder, unless a place is already chosen."""
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(base / "probmargin" / "inductor"))


def compiled(call: Callable[..., Any], mode: CompileMode, *, dynamic: bool = False) -> Callable[..., Any]:
    """Compile a callable for fixed shapes, or for what its inputs mark as dynamic; `off` hands it back."""
    if mode == "off":
        return call
    allow_many_compilations()
    chosen = "max-autotune-no-cudagraphs" if mode == "max-autotune" else None
    result: Callable[..., Any] = torch.compile(call, dynamic=None if dynamic else False, mode=chosen)
    return result
