"""Where a caller is inside torch.autocast: what attacks cannot work in, and how it is left."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from probmargin.core.errors import UsageError


def check_autocast(device: torch.device) -> None:
    """Refuse float16, in which the gradient of a confident example is zero and an attack stands still.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     check_autocast(torch.device("cpu"))
    """
    kind = device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
        raise UsageError(
            "torch.autocast computes in float16 here, where attacks stand still for want of a gradient: "
            "give it dtype=torch.bfloat16, or leave it for this call"
        )


@contextmanager
def outside_autocast() -> Iterator[None]:
    """Leave torch.autocast: results are of the precision that is chosen here.

    Where the caller is in none, none is entered: torch forgets its copies of weights, which grow stale, only on the
    way out of the outermost.

    >>> with torch.autocast("cpu", dtype=torch.float16), outside_autocast():
    ...     torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
    (False, False)
    """
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        yield
