"""The tasks to score, found by their names: every name is checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.core.formatting import split_names
from layerscope.errors import (
    DataError,
    InvalidValueError,
    UnknownNameError,
    clean_name,
    near_misses,
)
from layerscope.evaluation.tasks.columns import list_columns
from layerscope.evaluation.tasks.facts import counts, fingerprint
from layerscope.evaluation.tasks.mteb_tasks import PAPER
from layerscope.evaluation.tasks.sampling import apply_sample, check_sample
from layerscope.evaluation.tasks.source import SOURCES, LoadedTask, task_sources
from layerscope.extras import check_zoo
from layerscope.models.source import files_sha256

__all__ = ["PAPER", "TaskSpec", "resolve_tasks"]

SMALL = ("LeeSimilarity", "SentimentSnippets", "SmsSpam", "TrecQuestions")
PRESETS = {"paper": PAPER, "small": SMALL}


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
        list_columns(loaded.task)
        return loaded

    def facts(self, loaded: LoadedTask | None = None) -> dict[str, Any]:
        """Return what is scored and on which data; give the loaded task to save loading it again."""
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
            "superseded_by": metadata.superseded_by,
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
    """Return the tasks that names stand for, each with its source.

    A name is `paper` (the paper's 32 tasks), `small` (quick tasks from the package index), a
    catalogued task, any of mteb's text tasks, or a folder in `data_dir`; several go in a list or
    between commas. Data in `data_dir` come before those of the hub.
    """
    check_sample(sample)
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
    listed = [names] if isinstance(names, str) else list(names)
    single: list[str] = []
    for name in listed:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise InvalidValueError(f"task names must be strings; {name!r} is {kind}.")
        single += split_names(name)
    if not single:
        raise DataError(
            f"no task was named. Valid: {', '.join(PRESETS)}, a catalogued task or any of mteb's text tasks."
        )
    return list(dict.fromkeys(task for name in single for task in PRESETS.get(name, (name,))))


def _resolve(name: str, data_dir: Path | None, sample: int | None, seed: int) -> TaskSpec:
    """Return the spec of one task, from the first source that has it."""
    if clean_name(name) != name:
        raise DataError(
            f"a task's name must be printable and in one line, not {name!r}. Rename its folder."
        )
    for source in task_sources():
        place = source.find(name, data_dir)
        if place is not None:
            return TaskSpec(name, source.name, place, sample, seed)
    check_zoo("task", name)
    names = [*PRESETS]
    for source in task_sources():
        names += source.names(data_dir)
    folders = "" if data_dir is None else f", and any folder of {data_dir} that has test.jsonl.gz"
    raise UnknownNameError(
        "task",
        name,
        {*near_misses(name, names, 5), *PRESETS},
        f"Any text task of mteb can be given too{folders}.",
    )
