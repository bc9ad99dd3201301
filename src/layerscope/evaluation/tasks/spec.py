"""A task to score, small enough to send to another process, and the task object it stands for."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from layerscope.data.hub import hub_offline
from layerscope.errors import DataError, DownloadError, LayerscopeError, OfflineError
from layerscope.evaluation.tasks import catalogue
from layerscope.evaluation.tasks.facts import agrees_with_published, counts, fingerprint
from layerscope.evaluation.tasks.files import SplitFile, build, find_files, own_task_info
from layerscope.evaluation.tasks.info import TaskInfo, is_mteb_task, new_task, task_class, task_info
from layerscope.evaluation.tasks.limit import apply_limit
from layerscope.packages import sha256_of

Source = Literal["hub", "local", "package"]


@dataclass(frozen=True)
class TaskSpec:
    """One task and where its data come from.

    `path` is the task's folder for local data. `limit` scores a part of the data, drawn with `seed`; the scoring
    itself always uses mteb's own seed. `offline` keeps the hub libraries off the network.
    """

    name: str
    source: Source
    path: str | None = None
    limit: int | None = None
    seed: int = 0
    offline: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The fields, for a JSON file."""
        return asdict(self)

    def load(self) -> Any:
        """A new mteb task object with its data; the rows of local data stay in the files' order."""
        notes: dict[str, Any] = {}
        if self.source == "local":
            task, notes = self._load_local()
        elif self.source == "package":
            task = catalogue.new_task(self.name, offline=self.offline)
            task.load_data()
        else:
            task = self._load_hub()
        if self.limit is not None:
            apply_limit(task, self.limit, self.seed)
        if task.metadata.type == "Classification":
            _list_columns(task)
        task.data_notes = notes
        return task

    def facts(self, task: Any | None = None) -> dict[str, Any]:
        """What is scored and on which data, for a report. Give the loaded `task` to save loading it again."""
        task = self.load() if task is None else task
        metadata = task.metadata
        exact, reason = self._exact(task)
        own = {} if self.source != "package" else catalogue.TASKS.get(self.name).facts()
        return {
            "name": self.name,
            "task_type": metadata.type,
            "main_score": metadata.main_score,
            "splits": list(task.eval_splits),
            "subsets": list(task.hf_subsets),
            "dataset": metadata.dataset.get("path"),
            "revision": metadata.dataset.get("revision"),
            "source": self.source,
            "path": self.path,
            "limit": self.limit,
            "seed": self.seed if self.limit is not None else None,
            **counts(task),
            "fingerprint": fingerprint(task),
            "exact": exact,
            "exact_reason": reason,
            "stand_ins": {split: file.stand_in for split, file in self._stand_ins()},
            "license": own.get("license", metadata.license),
            "citation": own.get("citation", (metadata.bibtex_citation or "").strip() or None),
            "superseded_by": metadata.superseded_by,
            **getattr(task, "data_notes", {}),
        }

    def _exact(self, task: Any) -> tuple[bool | None, str]:
        """Whether the data are MTEB's own split, as far as that can be known."""
        if self.limit is not None:
            return False, f"a part: limit {self.limit}"
        stand_ins = [f"{file.path.name} stands in for {split!r}" for split, file in self._stand_ins()]
        if self.source == "package" or not is_mteb_task(self.name):
            return None, "not one of MTEB's tasks"
        if stand_ins:
            return False, "; ".join(stand_ins)
        if self.source == "hub":
            return True, "the revision that mteb pins"
        return agrees_with_published(task)

    def _stand_ins(self) -> list[tuple[str, SplitFile]]:
        if self.source != "local":
            return []
        _, files = self._local()
        return [(split, file) for by_split in files.values() for split, file in by_split.items() if file.stand_in]

    def _local(self) -> tuple[TaskInfo, dict[str, dict[str, SplitFile]]]:
        folder = Path(self.path or "")
        info = task_info(self.name) if is_mteb_task(self.name) else own_task_info(self.name, folder)
        files = find_files(folder, info) if info is not None else None
        if info is None or files is None:
            raise DataError(f"{folder} no longer holds the data of task {self.name}. Put it back, or resolve the tasks again.")
        return info, files

    def _load_local(self) -> tuple[Any, dict[str, Any]]:
        info, files = self._local()
        # Some tasks have several scored splits or subsets, of which some may be given: what is not there is not scored.
        splits = [split for split in info.splits if all(split in by_split for by_split in files.values())]
        if not splits:
            raise DataError(f"the subsets in {self.path} have no scored split in common. Scored: {', '.join(info.splits)}.")
        if is_mteb_task(self.name):
            task = new_task(info).filter_eval_splits(splits)
            task.hf_subsets = list(files)
        else:
            task = self._own_class(info, files)()
        task.dataset, notes = build(task, files)
        task.data_loaded = True
        return task, notes

    def _own_class(self, info: TaskInfo, files: dict[str, dict[str, SplitFile]]) -> type:
        # The version is the files' content, so that results of one version are not taken for those of another.
        digests = [sha256_of(file.path) for by_split in files.values() for _, file in sorted(by_split.items())]
        return task_class(
            self.name,
            info.task_type,
            lambda task: build(task, files)[0],
            description=f"A task of one's own, from {self.path}",
            origin=str(self.path),
            version=hashlib.sha256("".join(digests).encode()).hexdigest()[:40],
        )

    def _load_hub(self) -> Any:
        task = new_task(task_info(self.name))
        with hub_offline(self.offline):
            try:
                task.load_data()
            except Exception as error:  # of many kinds: the hub's, the network's and the builders' own
                raise self._explained(task, error) from error
        for subset in task.hf_subsets:
            missing = set(task.eval_splits) - set(task.dataset.get(subset, task.dataset))
            if missing:
                raise DataError(f"the data of task {self.name} ({subset}) have no split {', '.join(sorted(missing))}.")
        return task

    def _explained(self, task: Any, error: Exception) -> LayerscopeError:
        reason = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
        dataset = task.metadata.dataset
        text = f"the data of task {self.name} ({dataset.get('path')}, revision {dataset.get('revision')}) could not be loaded"
        advice = "give a data folder that holds it (<data_dir>/<task>/<split>.jsonl.gz)"
        if self.offline:
            return OfflineError(f"{text}, and downloads are off ({reason}). Run once with downloads on, or {advice}.")
        return DownloadError(f"{text}: {reason}. Check the network, or {advice}.")


def _list_columns(task: Any) -> None:
    """Let the datasets of a loaded classification task give columns as plain lists; rows, their order and scores stay the same.

    A column of `datasets` looks each value up in its table anew. mteb reads the labels one by one for every training draw
    and every metric, which makes these look-ups nearly all of the time that scoring one layer takes.
    """
    from datasets import Dataset, DatasetDict

    class ListColumns(Dataset):
        """A dataset that gives a column as a list."""

        def __getitem__(self, key: Any) -> Any:
            rows = super().__getitem__(key)
            return rows[:] if isinstance(key, str) else rows

    def convert(data: Any) -> Any:
        plain = data.flatten_indices() if data._indices is not None else data
        return ListColumns(plain.data, info=plain.info, split=plain.split)

    nested = not isinstance(task.dataset, DatasetDict)
    for subset, splits in task.dataset.items() if nested else [(None, task.dataset)]:
        replaced = DatasetDict({split: convert(data) for split, data in splits.items()})
        if subset is None:
            task.dataset = replaced
        else:
            task.dataset[subset] = replaced
