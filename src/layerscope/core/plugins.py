"""Registries: the built-in files of a folder, and what other packages add through entry points.

Adding a metric, family, study, task, judge, export format, page section, pooling or template is
adding one file. Inside the package the file goes into the registry's folder; outside it, a package
declares an entry point in the registry's group:

    [project.entry-points."layerscope.metrics"]
    my_metric = "my_package.my_metric:MyMetric"
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import check_zoo

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry"]

T = TypeVar("T")


class PluginError(LayerscopeError):
    """A thing of another package that cannot be loaded or is not of the registry's kind."""


class Registry(Generic[T]):
    """Things of one kind by name.

    `package` is the folder whose modules hold the built-in ones, `find` picks them out of a module,
    `name` returns the name of a thing, and `check` refuses what is not of the kind.

    >>> numbers = Registry(
    ...     "number", "example.numbers", name=str, check=lambda x: isinstance(x, int)
    ... )
    >>> numbers.add(7)
    7
    >>> numbers.get("7")
    7
    """

    def __init__(
        self,
        kind: str,
        group: str,
        *,
        name: Callable[[T], str],
        check: Callable[[Any], bool],
        package: str | None = None,
        find: Callable[[Any], list[T]] = lambda module: [],
        hint: str = "",
    ) -> None:
        self.kind = kind
        self.group = group
        self.package = package
        self.hint = hint
        self._name = name
        self._check = check
        self._find = find
        self._things: dict[str, T] = {}
        self._broken: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._loaded = False

    def add(self, thing: T) -> T:
        """Add a thing; also usable as a class decorator. Two things of one name are an error."""
        if not self._check(thing):
            raise PluginError(f"{thing!r} is not a {self.kind}.")
        name = self._name(thing)
        present = self._things.get(name)
        is_same = present == thing
        if isinstance(thing, type):
            is_same = _origin(present) == _origin(thing)
        if present is not None and not is_same:
            raise PluginError(
                f"two {self.kind}s are called {name!r}: {_origin(present)} and {_origin(thing)}. "
                "Rename one of them."
            )
        self._things[name] = thing
        return thing

    def load(self) -> None:
        """Import the built-in modules and load the entry points, once."""
        if self._loaded:
            return
        self._loaded = True
        if self.package is not None:
            home = importlib.import_module(self.package)
            for info in pkgutil.iter_modules(home.__path__):
                for thing in self._find(importlib.import_module(f"{self.package}.{info.name}")):
                    self.add(thing)
        for point in entry_points(group=self.group):
            self._load_point(point)

    def _load_point(self, point: EntryPoint) -> None:
        """Add the things of an entry point. One that cannot be loaded must not stop the others: the
        error is kept for when its thing is used."""
        source = point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"
        try:
            loaded = point.load()
            things = [loaded] if self._check(loaded) else self._find(loaded)
            if not things:
                raise PluginError(f"{point.value} is not a {self.kind}")
            for thing in things:
                self._sources[self._name(self.add(thing))] = source
        except Exception as error:
            self._broken[point.name] = (
                f"the {self.kind} {point.name!r} of {source} cannot be used: {error}"
            )

    def source(self, name: str) -> str | None:
        """Return the package and version whose entry point added a thing; None for the others."""
        self.load()
        return self._sources.get(name)

    def all(self) -> dict[str, T]:
        """Return all things by name."""
        self.load()
        return dict(self._things)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __contains__(self, name: object) -> bool:
        return name in self.all()

    def get(self, name: str) -> T:
        """Return the thing called `name`; an unknown name is an error that suggests the nearest."""
        things = self.all()
        if name in things:
            return things[name]
        if name in self._broken:
            raise PluginError(self._broken[name])
        check_zoo(self.kind, name)
        raise UnknownNameError(self.kind, name, things, self.hint)


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group in installed packages."""
    from importlib import metadata  # slow to import, and `layerscope --help` needs none

    return metadata.entry_points(group=group)


def _origin(thing: Any) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
