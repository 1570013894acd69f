"""The golden vectors: computed in float64 by a script that shares no code with the package."""

import json
from pathlib import Path
from typing import Any

import torch

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text(encoding="utf-8"))
DTYPES = [torch.float64, torch.float32]


def close(actual: torch.Tensor, expected: Any) -> None:
    """float64 to 1e-9 relative, float32 to 1e-4 relative plus 1e-6."""
    wanted = torch.tensor(expected, dtype=actual.dtype)
    if actual.dtype == torch.float64:
        # Twelve printed digits, so an entry of size 1 may be off by 5e-13.
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-15)
    else:
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-6)


def logits(name: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(GOLDEN["inputs"][f"logits_{name}"], dtype=dtype)


LABELS = torch.tensor(GOLDEN["inputs"]["labels"])


def kappa(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(GOLDEN["inputs"]["kappa"], dtype=dtype)
