"""Registries: a component is found by name, and adding one is adding a file."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from probmargin.core.errors import UsageError, unknown_name
from probmargin.core.records import Plain, build, to_plain

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """The components of one family. It imports its folder on the first look-up."""

    def __init__(self, family: str, package: str) -> None:
        self.family = family
        self._package = package
        self._classes: dict[str, type[T]] = {}
        self._examples: dict[str, Sequence[Mapping[str, Plain]]] = {}
        self._loaded = False

    def register(self, name: str, *, examples: Sequence[Mapping[str, Plain]] = ({},)) -> Callable[[C], C]:
        """Enter a frozen dataclass under a name; `examples` is what the conformance tests build of it."""

        def enter(cls: C) -> C:
            if name in self._classes:
                taken = self._classes[name].__name__
                raise UsageError(f"{self.family} {name!r} is already taken by {taken}; choose another name")
            cls.registered_name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            self._examples[name] = examples
            return cls

        return enter

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._classes)

    def get(self, name: str) -> type[T]:
        """The class of a name; an unknown one is answered with the nearest."""
        self._load()
        if name not in self._classes:
            raise unknown_name(self.family, name, self._classes)
        return self._classes[name]

    def build(self, plain: Plain, path: str | None = None) -> T:
        """Build a component from {"name": ..., its fields}, or from its bare name."""
        if isinstance(plain, str):
            plain = {"name": plain}
        if not isinstance(plain, Mapping) or "name" not in plain:
            raise UsageError(
                f"{path or self.family} takes an object with a name: give one of {', '.join(self.names())}"
            )
        fields = {key: value for key, value in plain.items() if key != "name"}
        component: T = build(self.get(str(plain["name"])), fields, path or self.family)
        return component

    def spec(self, component: T) -> Plain:
        """The plain data `build` would take to make this component again."""
        return to_plain(component)

    def examples(self) -> list[T]:
        """The components that conformance tests look at."""
        self._load()
        return [self.build({"name": name, **fields}) for name in self.names() for fields in self._examples[name]]

    def summary(self, name: str) -> str:
        """The first line of a component's docstring."""
        doc = inspect.cleandoc(self.get(name).__doc__ or "")
        return doc.partition("\n")[0]


def is_own(part: object) -> bool:
    """Whether a component, or the class of one, is the user's own."""
    cls = part if isinstance(part, type) else type(part)
    return cls.__module__.partition(".")[0] != __name__.partition(".")[0]
