"""A task to score, small enough to send to another process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.evaluation.tasks.columns import list_columns
from layerscope.evaluation.tasks.facts import counts, fingerprint
from layerscope.evaluation.tasks.sampling import apply_sample
from layerscope.evaluation.tasks.source import SOURCES, LoadedTask
from layerscope.models.source import files_sha256

__all__ = ["TaskSpec"]


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
