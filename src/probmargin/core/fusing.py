"""Small tensor functions that can be fused into few kernels where that pays.

A function marked `fusable` runs as written. Inside `with fused():`, which the fast path opens around a captured step,
it runs compiled: hundreds of tiny kernels become a handful.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch

Call = TypeVar("Call", bound=Callable[..., Any])

_MANY = 256


def allow_many_compilations() -> None:
    """Let one piece of code be compiled for many networks, seeds and shapes.

    By default torch runs it uncompiled from the ninth on, and says so in a log alone.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _MANY)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 16 * _MANY)


_is_fusing: ContextVar[bool] = ContextVar("is_fusing", default=False)


@contextmanager
def fused() -> Iterator[None]:
    """Run fusable functions compiled inside this block."""
    token = _is_fusing.set(True)
    try:
        yield
    finally:
        _is_fusing.reset(token)


def fusable(call: Call) -> Call:
    """Mark a pure function of tensors and plain values."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        allow_many_compilations()
        return torch.compile(call, dynamic=False)

    @functools.wraps(call)
    def either(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or not _is_fusing.get():
            return call(*arguments, **options)
        return compiled()(*arguments, **options)

    return cast(Call, either)
