"""Compiling callables, with a cache that outlives the process."""

import os
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch

from probmargin.core.cache import cache_folder
from probmargin.core.fusing import allow_many_compilations

CompileMode = Literal["default", "max-autotune", "off"]


def use_persistent_cache() -> None:
    """Keep compiled kernels in the user's cache folder, unless a place is already chosen."""
    folder = cache_folder("inductor")
    if folder is not None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def compiled(call: Callable[..., Any], mode: CompileMode, *, dynamic: bool = False) -> Callable[..., Any]:
    """Compile a callable for fixed shapes, or for what its inputs mark as dynamic; `off` hands it back."""
    if mode == "off":
        return call
    allow_many_compilations()
    # What computes in float32 here is meant to: verdicts and the heads of searches.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
    chosen = "max-autotune-no-cudagraphs" if mode == "max-autotune" else None
    result: Callable[..., Any] = torch.compile(call, dynamic=None if dynamic else False, mode=chosen)
    return result
