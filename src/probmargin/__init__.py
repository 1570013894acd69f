"""Instance-reweighted adversarial training with probabilistic margins.

Everything public is in `probmargin.api`; names are loaded on first use, so that `import probmargin` is quick.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from probmargin._version import __version__

if TYPE_CHECKING:
    from probmargin.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    api = importlib.import_module("probmargin.api")
    if name not in api.__all__:
        raise AttributeError(f"module 'probmargin' has no attribute {name!r}")
    return getattr(api, name)


class _Package(ModuleType):
    """This package, whose `export` is the function and not the sub-package of the same name."""

    @property
    def export(self) -> Any:
        return __getattr__("export")

    @export.setter
    def export(self, _: ModuleType) -> None:
        """The import system hands over the sub-package, which is found by its full name."""


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    api = importlib.import_module("probmargin.api")
    return [*api.__all__, "__version__"]


__all__ = ["__version__"]
