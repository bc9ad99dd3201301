"""The jobs of a sweep: each is an ordinary profile or evaluation in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from layerscope.data import Corpus
from layerscope.sweeps.read import CorpusEntry, ModelEntry, SweepConfig

Kind = Literal["profile", "evaluate"]


@dataclass(frozen=True)
class SweepJob:
    """One model at one revision on one corpus, or on the tasks."""

    kind: Kind
    name: str
    model: ModelEntry
    corpus: CorpusEntry | None
    settings: dict[str, Any] = field(default_factory=dict)
    offline: bool = False
    overwrite: bool = False

    def run(self, folder: Path, corpora: Mapping[CorpusEntry, Corpus], alone: bool = True) -> Any:
        """Do it; what the folder holds already is kept. One that is not `alone` on its machine starts no scoring processes."""
        import layerscope

        options = {**self.model.options, "adapters": tuple(self.model.options.get("adapters") or ())}
        if self.model.revision is not None:
            options["revision"] = self.model.revision
        common: dict[str, Any] = {
            "out": folder,
            "offline": self.offline,
            "overwrite": self.overwrite,
            "progress": False,
            "model_options": options,
        }
        if self.kind == "evaluate":
            settings = self.settings if alone else {"workers": 0, **self.settings}
            return layerscope.evaluate(self.model.spec, **common, **settings)
        assert self.corpus is not None
        return layerscope.profile(self.model.spec, corpora[self.corpus], **common, **self.settings)


def make_jobs(config: SweepConfig, overwrite: bool = False) -> list[SweepJob]:
    """Every model on every corpus, then on the tasks; a model's jobs lie together, for its files are then at hand."""
    jobs: list[SweepJob] = []
    taken: set[str] = set()
    common = {"offline": config.offline, "overwrite": overwrite}
    for model in config.models:
        for corpus in config.corpora:
            name = _unique(f"{model.label}--{corpus.label}", taken)
            jobs.append(SweepJob("profile", name, model, corpus, config.profile, **common))
        if config.evaluate is not None:
            name = _unique(f"{model.label}--tasks", taken)
            jobs.append(SweepJob("evaluate", name, model, None, config.evaluate, **common))
    return jobs


def _unique(name: str, taken: set[str]) -> str:
    """A folder's name that no other job has."""
    plain = "".join(c if c.isalnum() or c in "._-@" else "-" for c in name)
    found = next(n for n in (plain, *(f"{plain}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
    taken.add(found)
    return found


def is_complete(folder: Path) -> bool:
    """Whether a job's folder holds a finished run (of whatever it is: the job itself looks closer)."""
    from layerscope.errors import RunFolderError
    from layerscope.store import RunFolder

    try:
        held = RunFolder(folder).manifest()
    except RunFolderError:
        return False
    return held is not None and held.get("status") == "complete" and not held.get("failed")
