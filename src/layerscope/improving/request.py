"""The settings of an improvement, its run with the model and the texts, and its unfinished work."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layerscope.choose.labels import Labeled
from layerscope.core.files import read_json
from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.identity import model_key
from layerscope.core.runs import MANIFEST
from layerscope.errors import DataError, InvalidValueError, LayerscopeError, UnknownNameError
from layerscope.exporting.publishing import check_free
from layerscope.exporting.servers import check_names
from layerscope.extras import require
from layerscope.improving.candidates import make_grid
from layerscope.improving.judging import JudgeOption, check_judge
from layerscope.improving.pairs import SearchTexts
from layerscope.improving.reader import MOST_FITTED, Reader, Sample
from layerscope.models import LoadedModel
from layerscope.progress import OnRows, Progress
from layerscope.store import RunFolder, atomic
from layerscope.store.atomic import lock_beside
from layerscope.store.folder import config_key, is_complete
from layerscope.training.distill import check_settings
from layerscope.version import VERSION

PLAN = "plan.json"
_TRAINING = "training"


@dataclass(frozen=True)
class FitPlan:
    """The number of texts that a fit reads, and of prompts that teach it."""

    texts: int
    prompts: int = 1


@contextmanager
def working_folder(out: Path | None) -> Iterator[Path | None]:
    """Be the only process that improves into `out`; yield the folder for unfinished work."""
    if out is None:
        yield None
        return
    with lock_beside(out.resolve(), "improving") as work:
        yield work
        _clear(work)


@contextmanager
def training_folder(work: Path | None) -> Iterator[Path]:
    """Yield the folder for the checkpoints of a training."""
    if work is None:
        with tempfile.TemporaryDirectory(prefix="layerscope-") as folder:
            yield Path(folder)
        return
    place = work / _TRAINING
    place.mkdir(exist_ok=True)
    yield place


def settle_plan(work: Path | None, key: str, plan: FitPlan) -> FitPlan:
    """Return the plan that a stopped run of the same key began with, or record this one.

    A limit in minutes allows another number of texts each time it is estimated.
    """
    if work is None:
        return plan
    file = work / PLAN
    recorded = read_json(file) if file.is_file() else {}
    if recorded.get("key") == key:
        return FitPlan(recorded["texts"], recorded["prompts"])
    _clear(work)
    atomic.write_json(file, {"key": key, **asdict(plan)})
    return plan


def _clear(work: Path) -> None:
    (work / PLAN).unlink(missing_ok=True)
    shutil.rmtree(work / _TRAINING, ignore_errors=True)


CENTER_ON = ("auto", "all", "sample")
MORE = 5
"""The sizes of a sample that are drawn, so that a fit can take more texts than are judged."""


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

    @property
    def trains(self) -> bool:
        """Return whether blocks are trained."""
        return self.train is not None

    @property
    def further_texts(self) -> int:
        """Return how many texts are drawn beside the sample, for a fit on more than are judged."""
        is_usual = self.time is None and not self.trains and self.center_on != "all"
        return (MORE - 1) * self.sample if is_usual else MOST_FITTED - self.sample

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

    def is_done(self, config: dict[str, Any]) -> bool:
        """Return whether `out` holds this very run, finished; refuse a folder that is in the way."""
        if self.out is None:
            return False
        manifest = RunFolder(self.out).manifest() if self.out.is_dir() else None
        if not self.overwrite and manifest is not None and is_complete(manifest):
            is_same = config_key(manifest.get("config") or {}) == config_key(config)
            if is_same:
                return True
        check_free(self.out, self.overwrite)
        return False


@dataclass(frozen=True)
class Run:
    """One improvement: its request with the model, the sample of texts and the reader.

    `source` is the model as the user gave it, `labels` are the labeled examples, `search` the
    queries that should find the texts, and `work` the folder for unfinished work. `started` is in
    seconds.
    """

    request: ImproveRequest
    source: Any
    sample: Sample
    search: SearchTexts | None
    labels: Labeled | None
    reader: Reader
    bar: Progress
    started: float
    work: Path | None = None
    on_rows: OnRows | None = None

    @property
    def model(self) -> LoadedModel:
        """Return the model that is improved."""
        return self.reader.model

    @property
    def config(self) -> dict[str, Any]:
        """Return what tells this run from others, for its manifest."""
        request = self.request
        labels = None
        if request.labels is not None:
            labels = hashlib.sha256(Path(request.labels).read_bytes()).hexdigest()
        return {
            "model": model_key(self.model.identity),
            "texts": {"fingerprint": self.sample.facts["fingerprint"], "kept": request.texts},
            "templates": list(request.templates),
            "judge": request.judge if isinstance(request.judge, str) else request.judge.name,
            "labels": labels,
            "budget": request.budget,
            "servers": list(request.servers),
            "sample": request.sample,
            "max_length": request.max_length,
            "seed": request.seed,
            "center_on": request.center_on,
            "time": request.time,
            "train": None if request.train is None else dict(request.train),
            "search": None if self.search is None else self.search.key,
            "layerscope": VERSION,
        }
