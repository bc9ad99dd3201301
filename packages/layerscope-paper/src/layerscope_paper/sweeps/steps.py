"""Steps of a plan: each is an ordinary profile, evaluation, probe or study in a folder of its
own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.core.columns import PROFILE, names
from layerscope.core.readout import READOUT_COLUMNS, readout_names
from layerscope.data import Corpus, load_corpus
from layerscope.engines.base import ROOM
from layerscope.errors import RunFolderError
from layerscope.evaluation.job import evaluate
from layerscope.evaluation.run import Evaluation
from layerscope.models import catalogue
from layerscope.probing import ProbeRun, probe
from layerscope.profiling import Profile, ProfileConfig, profile
from layerscope.profiling.config import make_config
from layerscope.store import RunFolder
from layerscope_paper.studies.run import StudyRun, study
from layerscope_paper.studies.shared.models import Spec

_JOB_COLUMNS = ["job", "model", "revision", "corpus", "task", "readout", "setting"]
COLUMNS = [*_JOB_COLUMNS, *names(PROFILE)]
_NO_CONFIG = (
    "batch_size",
    "data",
    "limit",
)  # settings of a profile that say what it reads, and how fast
_MISSING = dict.fromkeys(_JOB_COLUMNS) | {
    column.name: math.nan if column.kind in (int, float) else None for column in PROFILE
}


@dataclass(frozen=True)
class PlannedCorpus:
    """One corpus and its settings."""

    data: str
    column: str | None = None
    limit: int | None = None
    label: str = ""

    def load(self) -> Corpus:
        """Read its texts."""
        return load_corpus(self.data, column=self.column, limit=self.limit)


@dataclass(frozen=True)
class Step:
    """One run of a plan: a profile, an evaluation or a probe of one model, or a study of some.

    `settings` are those of the function that runs it; a study has its `options` besides.
    `model_options` are those of the command, for all models.
    """

    kind: str
    name: str
    models: tuple[Spec, ...]
    corpus: PlannedCorpus | None
    settings: dict[str, Any] = field(default_factory=dict)
    study: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    overwrite: bool = False
    model_options: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None

    @property
    def revision(self) -> str | None:
        """The revision of its model, where it has one model and the plan names one."""
        return self.models[0].options.get("revision") if len(self.models) == 1 else None

    @property
    def model(self) -> str:
        """The name of its models in tables, without the revision."""
        if len(self.models) == 1:
            return self.models[0].label.removesuffix(f"@{self.revision}")
        return ", ".join(spec.label for spec in self.models)

    @property
    def memory(self) -> int:
        """The approximate memory of a worker with its largest model; 0 for a model on the hub,
        whose size is unknown."""
        largest = max(map(_weight_bytes, self.models), default=0)
        return int(1.2 * largest + ROOM) if largest else 0

    def options_of(self, spec: Spec) -> dict[str, Any]:
        """Return the settings that a model is loaded with."""
        options = {**self.common_options, **spec.options}
        return {**options, "adapters": tuple(options.get("adapters") or ())}

    @property
    def common_options(self) -> dict[str, Any]:
        """The settings that all of its models are loaded with: a study has one default
        precision."""
        dtype = self.settings.get("dtype")
        return self.model_options if dtype is None else {**self.model_options, "dtype": dtype}

    def run(
        self,
        folder: Path,
        corpora: Mapping[PlannedCorpus, Corpus],
        *,
        alone: bool = True,
        progress: Any = False,
    ) -> Any:
        """Run the step, or read its finished folder. A step that is not `alone` on its machine
        starts no scoring processes."""
        settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            **self.settings,
            "out": folder,
            "overwrite": self.overwrite,
            "progress": progress,
        }
        if self.corpus is not None:  # a profile of images names them in its settings
            settings["data"] = corpora.get(self.corpus) or self.corpus.load()
        if self.kind == "study":
            settings.pop("dtype", None)
            settings |= self.common_options
            return study(self.study, *self.models, **settings, **self.options)
        if self.kind == "evaluate" and not alone:
            settings = {"scoring_workers": 0, **settings}
        function: Any = {"profile": profile, "evaluate": evaluate, "probe": probe}[self.kind]
        spec = self.models[0]
        return function(spec.model, **{**settings, **self.options_of(spec)})

    def is_complete(self, folder: Path) -> bool:
        """Return True if a folder holds a finished run, of whatever kind and settings."""
        try:
            manifest = RunFolder(folder).manifest() or {}
        except RunFolderError:
            return False
        return manifest.get("status") == "complete" and not manifest.get("failed")

    def rows(self, folder: Path) -> pd.DataFrame:
        """Return every value of its finished run, in the columns of the plan's table; a column that
        does not apply is empty."""
        if self.kind == "study":
            rows = _study_rows(StudyRun.load(folder).table)
        elif self.kind == "evaluate":
            rows = _score_rows(Evaluation.load(folder).scores)
        elif self.kind == "probe":
            rows = ProbeRun.load(folder).table.rename(columns={"probe": "setting"})
        else:
            rows = Profile.load(folder).table
        columns = {**_MISSING, "model": self.model}
        missing = {name: value for name, value in columns.items() if name not in rows}
        corpus = None if self.corpus is None else self.corpus.label
        rows = rows.assign(**missing).assign(job=self.name, revision=self.revision, corpus=corpus)
        return rows[COLUMNS]


def profile_config(step: Step) -> ProfileConfig:
    """Return the checked settings of a step's profile."""
    settings = {key: value for key, value in step.settings.items() if key not in _NO_CONFIG}
    # data in the settings are images, unless a length of texts is set too
    is_text = step.corpus is not None or "max_length" in settings
    return make_config(kind="texts" if is_text else "images", **settings)


def _weight_bytes(spec: Spec) -> int:
    """Return the size of a model's weights by the catalogue or its files; 0 if unknown."""
    name = str(spec.model).partition("@")[0]
    entries = catalogue()
    if name in entries:
        return 4 * entries[name].parameters
    folder = Path(name).expanduser()
    return sum(
        file.stat().st_size
        for file in folder.glob("*")
        if file.suffix in (".safetensors", ".bin", ".gguf")
    )


def _score_rows(scores: pd.DataFrame) -> pd.DataFrame:
    rows = scores.drop(columns=[name for name in READOUT_COLUMNS if name != "sink"]).rename(
        columns={"score": "value"}
    )
    return rows.assign(readout=readout_names(scores), n=0)


def _study_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return a study's table, with the columns of this study alone (before the value) written into
    `setting`."""
    columns = list(table.columns)
    varied = [name for name in columns[: columns.index("value")] if name not in COLUMNS]
    settings = pd.Series([""] * len(table), index=table.index)
    for name in varied:
        has_value = table[name].notna()
        settings[has_value] += f" {name}=" + table[name][has_value].astype(str)
    return table.assign(setting=settings.str.strip().replace("", None))
