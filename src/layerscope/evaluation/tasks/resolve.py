"""From names to task specs: every name checked, every task's data located, before anything is
loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from layerscope.core.formatting import split_names
from layerscope.errors import (
    DataError,
    InvalidValueError,
    OfflineError,
    UnknownNameError,
    clean_name,
    near_misses,
)
from layerscope.evaluation.tasks import catalogue
from layerscope.evaluation.tasks.files import find_split, folder_readers
from layerscope.evaluation.tasks.info import PAPER_TASKS, is_mteb_task, task_info, text_tasks
from layerscope.evaluation.tasks.spec import TaskSpec, check_sample
from layerscope.extras import check_zoo, fetch_command, missing

PRESETS = ("paper", "small")

SMALL = ("LeeSimilarity", "SentimentSnippets", "SmsSpam", "TrecQuestions")
"""The preset `small`. Tasks that other packages add to the catalogue do not change it."""


def resolve_tasks(
    names: Sequence[str] | str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    offline: bool = False,
    sample: int | None = None,
    seed: int = 0,
) -> list[TaskSpec]:
    """The tasks that names stand for, each with the place its data come from.

    A name is `paper` (the paper's 32 tasks), `small` (quick tasks from the package index), a
    catalogued task, any of mteb's text tasks, or a folder in `data_dir`; several go in a list or
    between commas. Data in `data_dir` come first, then the package index or the hub. With
    `offline`, tasks whose data are not on this machine are one error.
    """
    check_sample(sample)
    folder = None if data_dir is None else Path(data_dir).expanduser().absolute()
    if folder is not None and not folder.is_dir():
        raise DataError(
            f"the data folder {str(folder)!r} does not exist. It must hold <task>/<split>.jsonl.gz."
        )
    specs: list[TaskSpec] = []
    absent: dict[str, str] = {}
    for name in expand_names(names):
        spec, looked = _located(name, folder, offline, sample, seed)
        if spec is not None:
            specs.append(spec)
        else:
            absent[name] = looked
    if absent:
        lines = "".join(f"\n  {name}: {looked}" for name, looked in absent.items())
        raise OfflineError(
            f"{len(absent)} of {len(absent) + len(specs)} tasks have no data on this machine, and downloads are off:{lines}\n"
            "Put their files there, fetch them on a machine with network access, or leave the tasks out."
        )
    return specs


def expand_names(names: Sequence[str] | str) -> list[str]:
    """Single names, each once, with the presets written out.

    >>> expand_names("STS12, small")
    ['STS12', 'LeeSimilarity', 'SentimentSnippets', 'SmsSpam', 'TrecQuestions']
    """
    given = [names] if isinstance(names, str) else list(names)
    wrong = [name for name in given if not isinstance(name, str)]
    if wrong:
        raise InvalidValueError(
            f"task names must be strings; {wrong[0]!r} is {type(wrong[0]).__name__}."
        )
    single = [part for name in given for part in split_names(name)]
    if not single:
        raise DataError(
            f"no task was named. Valid: {', '.join(PRESETS)}, a catalogued task or any of mteb's text tasks."
        )
    odd = next((name for name in single if clean_name(name) != name), None)
    if odd is not None:
        raise DataError(
            f"a task's name must be printable and in one line, not {odd!r}. Rename its folder."
        )
    presets = {"paper": list(PAPER_TASKS), "small": list(SMALL)}
    return list(dict.fromkeys(task for name in single for task in presets.get(name, [name])))


def _located(
    name: str, data_dir: Path | None, offline: bool, sample: int | None, seed: int
) -> tuple[TaskSpec | None, str]:
    """The spec of one task, or the places that were searched where its data cannot be found."""
    if name in catalogue.TASKS:
        if offline and not catalogue.TASKS.is_cached(name):
            return None, f"not in {catalogue.TASKS.get(name).path}; run {fetch_command(name)}"
        return TaskSpec(name, "package", None, sample, seed, offline), ""
    folder = _folder(name, data_dir)
    if folder is not None and any(reader.find(name, folder) for reader in folder_readers()):
        return TaskSpec(name, "local", str(folder), sample, seed, offline), ""
    if not is_mteb_task(name):
        check_zoo("task", name)
        raise _unknown(name, data_dir)
    if folder is not None and find_split(folder, "test") is not None:
        raise missing("task files")
    info = task_info(name)
    if not offline or _in_hub_cache(name):
        return TaskSpec(name, "hub", None, sample, seed, offline), ""
    needed = " and ".join(f"{split}.jsonl[.gz]" for split in info.needed_splits)
    places = (
        [f"no {needed} in {data_dir / name}"]
        if data_dir is not None
        else ["no data folder was given"]
    ) + ["not in the hub cache"]
    return None, ", ".join(places)


def _folder(name: str, data_dir: Path | None) -> Path | None:
    """The task's folder; a name that contains a path is not a task's name."""
    if data_dir is None or Path(name).name != name or name in (".", ".."):
        return None
    return data_dir / name if (data_dir / name).is_dir() else None


def _in_hub_cache(name: str) -> bool:
    """Whether the hub's cache holds a task's dataset (in some revision; loading it shows which)."""
    from datasets import config

    repo = str(text_tasks()[name].metadata.dataset["path"]).replace("/", "___")
    root = Path(config.HF_DATASETS_CACHE)
    return any(
        path.is_dir() and any(path.rglob("*.arrow")) for path in (root / repo, root / repo.lower())
    )


def _unknown(name: str, data_dir: Path | None) -> UnknownNameError:
    """The nearest names rather than all: mteb has more than a thousand."""
    folders = (
        [path.name for path in data_dir.iterdir() if path.is_dir()] if data_dir is not None else []
    )
    everything = {
        known.lower(): known
        for known in (*text_tasks(), *folders, *PAPER_TASKS, *catalogue.TASKS, *PRESETS)
    }
    near = near_misses(name, everything, 5)
    valid = {*(everything[match] for match in near), *catalogue.TASKS, *PRESETS}
    hint = "Any text task of mteb can be given too"
    hint += (
        f", and any folder of {data_dir} that has test.jsonl.gz." if data_dir is not None else "."
    )
    return UnknownNameError("task", name, valid, hint)
