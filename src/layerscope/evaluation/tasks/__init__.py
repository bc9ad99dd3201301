"""Labeled tasks: the places that they come from, and the tasks to score, by their names.

A task source is the hub, a folder of files, or the catalogue. To add one, write one file in this
folder with a `TaskSource` under the name `SOURCE`. Another package declares an entry point of the
group `layerscope.tasks` whose module has a `SOURCE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from layerscope.catalogue import Catalogue, Entry
from layerscope.core.options import split_names
from layerscope.core.plugins import Registry
from layerscope.data.hub import hub_explained
from layerscope.errors import (
    DataError,
    InvalidValueError,
    UnknownNameError,
    clean_name,
    near_misses,
)
from layerscope.evaluation.tasks.mteb_tasks import (
    PAPER,
    apply_sample,
    counts,
    fingerprint,
    is_mteb_task,
    make_task,
    mteb_task,
    reseed,
    text_tasks,
)
from layerscope.extras import check_zoo
from layerscope.models.source import files_sha256

__all__ = [
    "PAPER",
    "TASKS",
    "LoadedTask",
    "Splits",
    "TaskEntry",
    "TaskSource",
    "TaskSpec",
    "reseed",
    "resolve_tasks",
]

SMALL = ("LeeSimilarity", "SentimentSnippets", "SmsSpam", "TrecQuestions")
PRESETS = {"paper": PAPER, "small": SMALL}
MIN_SAMPLE = 4
"""With fewer items some scores (correlations, average precision) do not exist."""


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


Splits = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class TaskEntry(Entry):
    """A task with a short name, which a package registers with an entry point of the group
    `layerscope.tasks`.

    `read` turns the folder of its files into rows by split; `attributes` are set on mteb's task
    class.
    """

    kind: ClassVar[str] = "task"
    shelf: ClassVar[str] = "tasks"

    task_type: Literal["Classification", "STS"]
    read: Callable[[Path], Splits]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def splits(self) -> Splits:
        """Return its rows by split; files that are not on this machine are fetched."""
        return self.read(self.fetch())


TASKS = Catalogue(TaskEntry, "layerscope.tasks")


class CataloguedTasks(TaskSource):
    """Tasks that packages register as `TaskEntry`."""

    name = "package"
    order = 10

    def names(self, data_dir: Path | None) -> Iterable[str]:
        return TASKS

    def find(self, name: str, data_dir: Path | None) -> str | None:
        return "" if name in TASKS else None

    def load(self, name: str, place: str) -> LoadedTask:
        from datasets import Dataset, DatasetDict

        entry = TASKS.get(name)
        origin, _, version = entry.version.rpartition(" ")
        task = make_task(name, entry.task_type, entry.summary, origin, version, entry.attributes)
        splits = entry.splits()
        task.dataset = DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
        task.data_loaded = True
        return LoadedTask(task, notes={"license": entry.license, "citation": entry.citation})


class HubTasks(TaskSource):
    """mteb's own tasks, at the revision that mteb names."""

    name = "hub"
    order = 40

    def names(self, data_dir: Path | None) -> Iterable[str]:
        return (*text_tasks(), *PAPER)

    def find(self, name: str, data_dir: Path | None) -> str | None:
        return "" if is_mteb_task(name) else None

    def load(self, name: str, place: str) -> LoadedTask:
        task = mteb_task(name)
        dataset = task.metadata.dataset
        repo = dataset.get("path")
        revision = dataset.get("revision")
        shown = f"the data of task {name} ({repo}, revision {revision})"
        with hub_explained("dataset", repo, revision, shown):
            task.load_data()
        return LoadedTask(task, True, "the revision that mteb pins")


def _source_of(module: Any) -> list[TaskSource]:
    source = getattr(module, "SOURCE", None)
    return [] if source is None else [source]


SOURCES: Registry[TaskSource] = Registry(
    "task source",
    "layerscope.tasks",
    name=lambda source: source.name,
    check=lambda thing: isinstance(thing, TaskSource),
    package=__name__,
    find=_source_of,
)
SOURCES.add(CataloguedTasks())
SOURCES.add(HubTasks())


@dataclass(frozen=True)
class TaskSpec:
    """A task, its source, and the part of its data that is scored.

    `path` is where the source found the data. `sample` scores a part of them, drawn with `seed`;
    the scoring itself always uses mteb's own seed.
    """

    name: str
    source: str
    path: str = ""
    sample: int | None = None
    seed: int = 0

    def files_sha256(self) -> str | None:
        """Return a fingerprint of the task's local files, if it has some."""
        files = (path for path in Path(self.path).rglob("*") if path.is_file())
        return files_sha256(files) if self.path else None

    def load(self) -> LoadedTask:
        """Return a new task object of mteb with the data that are scored."""
        loaded = SOURCES.get(self.source).load(self.name, self.path)
        if self.sample is not None:
            apply_sample(loaded.task, self.sample, self.seed)
            loaded = replace(loaded, exact=False, exact_reason=f"a part: sample {self.sample}")
        return loaded

    def facts(self, loaded: LoadedTask | None = None) -> dict[str, Any]:
        """Return what is scored and on which data; a task that is given is not loaded again."""
        loaded = loaded or self.load()
        task = loaded.task
        metadata = task.metadata
        return {
            "name": self.name,
            "task_type": metadata.type,
            "main_score": metadata.main_score,
            "splits": list(task.eval_splits),
            "subsets": list(task.hf_subsets),
            "dataset": metadata.dataset.get("path"),
            "revision": metadata.dataset.get("revision"),
            "source": self.source,
            "path": self.path or None,
            "limit": self.sample,
            "seed": None if self.sample is None else self.seed,
            "fingerprint": fingerprint(task),
            "exact": loaded.exact,
            "exact_reason": loaded.exact_reason,
            "license": metadata.license,
            "citation": (metadata.bibtex_citation or "").strip() or None,
            **counts(task),
            **loaded.notes,
        }


def resolve_tasks(
    names: Sequence[str] | str,
    *,
    data_dir: str | Path | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> list[TaskSpec]:
    """Return the tasks that names stand for, each with its source. Nothing is loaded.

    A name is `paper` (the paper's 32 tasks), `small` (quick tasks from the package index), a
    catalogued task, any of mteb's text tasks, or a folder in `data_dir`; several go in a list or
    between commas. Data in `data_dir` come before those of the hub.
    """
    if sample is not None and (type(sample) is not int or sample < MIN_SAMPLE):
        raise InvalidValueError(
            f"sample is {sample!r}; it must be a whole number of items, {MIN_SAMPLE} or more, or "
            "left out."
        )
    folder = None if data_dir is None else Path(data_dir).expanduser().absolute()
    if folder is not None and not folder.is_dir():
        raise DataError(
            f"the data folder {str(folder)!r} does not exist. It must hold <task>/<split>.jsonl.gz."
        )
    return [_resolve(name, folder, sample, seed) for name in expand_names(names)]


def expand_names(names: Sequence[str] | str) -> list[str]:
    """Return single names, each once, with the presets written out.

    >>> expand_names("STS12, small")
    ['STS12', 'LeeSimilarity', 'SentimentSnippets', 'SmsSpam', 'TrecQuestions']
    """
    single: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str):
            raise InvalidValueError(f"task names must be strings, not {name!r}.")
        single += split_names(name)
    if not single:
        raise DataError(
            f"no task was named. Valid: {', '.join(PRESETS)}, a catalogued task or any of mteb's "
            "text tasks."
        )
    return list(dict.fromkeys(task for name in single for task in PRESETS.get(name, (name,))))


def _resolve(name: str, data_dir: Path | None, sample: int | None, seed: int) -> TaskSpec:
    """Return the spec of one task, from the first source that has it."""
    if clean_name(name) != name:
        raise DataError(
            f"a task's name must be printable and in one line, not {name!r}. Rename its folder."
        )
    sources = sorted(SOURCES.all().values(), key=lambda source: source.order)
    for source in sources:
        place = source.find(name, data_dir)
        if place is not None:
            return TaskSpec(name, source.name, place, sample, seed)
    check_zoo("task", name)
    names = [*PRESETS]
    for source in sources:
        names += source.names(data_dir)
    folders = "" if data_dir is None else f", and any folder of {data_dir} that has test.jsonl.gz"
    raise UnknownNameError(
        "task",
        name,
        {*near_misses(name, names, 5), *PRESETS},
        f"Any text task of mteb can be given too{folders}.",
    )
