"""A task source is a place that tasks come from: the hub, a folder of files, or the catalogue.

To add a source, write one file in `sources/` with a `TaskSource` under the name `SOURCE`. Another
package declares an entry point of the group `layerscope.tasks` whose module has a `SOURCE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from layerscope.core.plugins import Registry

__all__ = ["LoadedTask", "TaskSource"]


@dataclass(frozen=True)
class LoadedTask:
    """A task of mteb with its data, and what its source knows about them.

    `exact` says whether the data are MTEB's own split (None: not known), `exact_reason` why.
    `notes` are further facts for the manifest.
    """

    task: Any
    exact: bool | None = None
    exact_reason: str = "not one of MTEB's tasks"
    notes: Mapping[str, Any] = field(default_factory=dict)


class TaskSource(ABC):
    """A place that tasks come from."""

    name: ClassVar[str]
    order: ClassVar[int]
    """Sources are asked for a task in this order; the first that has it is taken."""

    @abstractmethod
    def find(self, name: str, data_dir: Path | None) -> str | None:
        """Return where the data of a task are (empty: the name is enough), or None where this
        source has no such task."""

    @abstractmethod
    def load(self, name: str, place: str) -> LoadedTask:
        """Return the task with its data; `place` is what `find` returned."""

    def names(self, data_dir: Path | None) -> Iterable[str]:
        """Return names of tasks, to suggest for one that no source has."""
        return ()


def _source_of(module: Any) -> list[TaskSource]:
    source = getattr(module, "SOURCE", None)
    return [] if source is None else [source]


SOURCES: Registry[TaskSource] = Registry(
    "task source",
    "layerscope.tasks",
    name=lambda source: source.name,
    check=lambda thing: isinstance(thing, TaskSource),
    package="layerscope.evaluation.tasks.sources",
    find=_source_of,
)


def task_sources() -> list[TaskSource]:
    """Return all sources in the order in which they are asked."""
    return sorted(SOURCES.all().values(), key=lambda source: source.order)
