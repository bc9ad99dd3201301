"""From names to task specs: every name is checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from layerscope.core.formatting import split_names
from layerscope.errors import (
    DataError,
    InvalidValueError,
    UnknownNameError,
    clean_name,
    near_misses,
)
from layerscope.evaluation.tasks.mteb_tasks import PAPER
from layerscope.evaluation.tasks.sampling import check_sample
from layerscope.evaluation.tasks.source import task_sources
from layerscope.evaluation.tasks.spec import TaskSpec
from layerscope.extras import check_zoo

__all__ = ["PAPER", "resolve_tasks"]

SMALL = ("LeeSimilarity", "SentimentSnippets", "SmsSpam", "TrecQuestions")
PRESETS = {"paper": PAPER, "small": SMALL}


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
    known = [*PRESETS, *(other for source in task_sources() for other in source.names(data_dir))]
    folders = "" if data_dir is None else f", and any folder of {data_dir} that has test.jsonl.gz"
    raise UnknownNameError(
        "task",
        name,
        {*near_misses(name, known, 5), *PRESETS},
        f"Any text task of mteb can be given too{folders}.",
    )
