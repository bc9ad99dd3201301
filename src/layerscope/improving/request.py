"""The settings of an improvement, and one run of it: the settings with the model and the texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.choose.labels.read import Labeled
from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.identity import model_key
from layerscope.core.runs import MANIFEST
from layerscope.errors import DataError, InvalidValueError, LayerscopeError, UnknownNameError
from layerscope.exporting.folder import check_free
from layerscope.exporting.servers import check_names
from layerscope.extras import require
from layerscope.improving.candidates import make_grid
from layerscope.improving.judging import JudgeOption, check_judge
from layerscope.improving.sample import MORE, MOST, Reader, Sample
from layerscope.models import LoadedModel
from layerscope.progress import OnRows, Progress
from layerscope.store.folder import config_key
from layerscope.training.distill import check_settings
from layerscope.version import VERSION

CENTER_ON = ("auto", "all", "sample")


@dataclass(frozen=True)
class ImproveRequest:
    """The settings of one improvement; a wrong one is refused before anything is read.

    `templates` are names, today's `plain` first. `train` has settings of the trainer; None: nothing
    is trained. `is_search` says whether queries should find documents.
    """

    templates: tuple[str, ...]
    judge: JudgeOption
    labels: str | Path | None
    budget: float | None
    keep: float | None
    servers: tuple[str, ...]
    sample: int
    max_length: int
    seed: int
    center_on: str
    time: float | None
    train: Mapping[str, Any] | None
    texts: bool
    is_search: bool
    out: Path | None
    overwrite: bool

    def __post_init__(self) -> None:
        """Check every setting that needs no model."""
        if self.budget is not None and not self.budget > 0:
            raise InvalidValueError(
                "a budget is a share of today's computation per text above 0, such as 0.3, not "
                f"{self.budget:g}."
            )
        if self.sample < 1:
            raise InvalidValueError(f"a sample has at least one text, not {self.sample}.")
        if self.center_on not in CENTER_ON:
            raise UnknownNameError("choice of the texts to center on", self.center_on, CENTER_ON)
        check_names(self.servers)
        if self.time is not None and not self.time > 0:
            raise InvalidValueError(f"time= is minutes, more than 0, not {self.time:g}.")
        if self.train is not None:
            require("train")
            check_settings(self.train)
        make_grid(self.templates, has_cls=False, has_norm=True)
        check_judge(self.judge)
        if self.out is not None and not (self.out / MANIFEST).is_file():
            check_free(self.out, self.overwrite)  # a run that is there may be this very one

    def check_search(self) -> None:
        """Refuse what a search with a language model cannot do."""
        if not self.is_search:
            return
        if self.servers:
            raise InvalidValueError(
                "queries are read in their own way by sentence-transformers alone: leave out "
                "servers=."
            )
        options = {"labels": self.labels, "time": self.time, "train": self.train}
        options["center_on"] = None if self.center_on == "auto" else self.center_on
        for name, value in options.items():
            if value is not None:
                raise InvalidValueError(
                    f"{name}= is not for a search. With queries= give pairs=, or nothing."
                )

    @property
    def trains(self) -> bool:
        """Return whether blocks are trained."""
        return self.train is not None

    @property
    def draws(self) -> int:
        """Return how many times the sample are drawn, for fitting on more texts than are judged."""
        is_usual = self.time is None and not self.trains and self.center_on != "all"
        return MORE if is_usual else MOST

    def check_sample(self, sample: Sample) -> None:
        """Refuse to train on fewer texts than a head takes."""
        count = len(sample.texts)
        if self.trains and count < LEAST_TEXTS:
            advice = f"Set sample={LEAST_TEXTS} or more"
            if sample.total < LEAST_TEXTS:
                advice = "Give more"
            raise DataError(
                f"{count} texts are too few to train on: it takes {LEAST_TEXTS}. {advice}, or "
                "leave out train=."
            )

    def check_model(self, model: LoadedModel) -> None:
        """Refuse a model that reads no texts."""
        if model.kind != "texts":
            raise LayerscopeError(
                f"{model.name} reads {model.kind}; improve is for models that read texts."
            )
        if model.tokenizer is None:
            raise LayerscopeError(
                f"{model.name} has no tokenizer. Give one: improve(module, texts, tokenizer=…)."
            )

    def config(self, model: LoadedModel, fingerprint: str, search: str | None) -> dict[str, Any]:
        """Return what tells this run from others, for its manifest."""
        labels = None
        if self.labels is not None:
            labels = hashlib.sha256(Path(self.labels).read_bytes()).hexdigest()
        return {
            "model": model_key(model.identity),
            "texts": {"fingerprint": fingerprint, "kept": self.texts},
            "templates": list(self.templates),
            "judge": self.judge if isinstance(self.judge, str) else self.judge.name,
            "labels": labels,
            "budget": self.budget,
            "servers": list(self.servers),
            "sample": self.sample,
            "max_length": self.max_length,
            "seed": self.seed,
            "center_on": self.center_on,
            "time": self.time,
            "train": None if self.train is None else dict(self.train),
            "search": search,
            "layerscope": VERSION,
        }


@dataclass(frozen=True)
class Run:
    """One improvement: its request with the model, the sample of texts and the reader.

    `source` is the model as the user gave it, `labels` are the labeled examples, `config` tells the
    run from others, and `work` is the folder for unfinished work. `started` is in seconds.
    """

    request: ImproveRequest
    source: Any
    model: LoadedModel
    sample: Sample
    labels: Labeled | None
    reader: Reader
    config: dict[str, Any]
    bar: Progress
    started: float
    work: Path | None = None
    on_rows: OnRows | None = None

    @property
    def key(self) -> str:
        """Return a digest of the config."""
        return config_key(self.config)
