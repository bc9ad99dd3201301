"""What a sweep will take, told before it starts: texts, tokens, time and memory of every job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.capture.batches import CPU_TOKENS
from layerscope.data import Corpus
from layerscope.errors import LayerscopeError
from layerscope.profiling.config import ProfileConfig, make_config
from layerscope.sweeps.jobs import SweepJob, is_complete
from layerscope.sweeps.read import CorpusEntry, ModelEntry
from layerscope.sweeps.shape import Shape, seconds_per_token, shape_of

# Beside the passes themselves: metrics and intervals, views, writing (docs/scaling.md), and loading the model and libraries.
_OVERHEAD = 1.2
_START_S = 5.0
_LIBRARIES = 0.8 * 2**30
_PER_TOKEN = 4 * 48  # bytes per feature of a token that is in a batch
_CHARACTERS = 4.2  # of a token, where no tokenizer is at hand
_SAMPLE = 64


@dataclass(frozen=True)
class Estimate:
    """Of one job. What could not be told is None, and `note` says why."""

    job: str
    texts: int | None = None
    passes: int | None = None
    tokens: float | None = None
    parameters: int | None = None
    seconds: float | None = None
    memory: int | None = None
    disk: int | None = None
    note: str = ""


def estimate_all(jobs: Sequence[SweepJob], corpora: Mapping[CorpusEntry, Corpus], out: Path) -> list[Estimate]:
    """An estimate of every job. Each model's shape is timed once."""
    timer = _Timer()
    return [_estimate(job, corpora, out / job.name, timer) for job in jobs]


def total_seconds(estimates: Sequence[Estimate], workers: int) -> float:
    """Of all jobs that could be estimated, shared among workers: no less than the longest."""
    each = [e.seconds for e in estimates if e.seconds]
    return max([sum(each) / max(1, workers), *each]) if each else 0.0


class _Timer:
    """Shapes, speeds and tokenizers by model, each found out once."""

    def __init__(self) -> None:
        self._shapes: dict[str, Shape] = {}
        self._speeds: dict[tuple[int, int, int, str], float] = {}
        self._tokenizers: dict[str, Any] = {}

    def shape(self, model: ModelEntry) -> Shape:
        key = repr(model)
        if key not in self._shapes:
            self._shapes[key] = shape_of(model)
        return self._shapes[key]

    def speed(self, model: ModelEntry) -> float:
        shape = self.shape(model)
        how = f"{model.options.get('dtype')} {model.options.get('device')}"
        key = (shape.parameters, shape.blocks, shape.width, how)  # checkpoints of one model have one shape
        if key not in self._speeds:
            self._speeds[key] = seconds_per_token(shape, model)
        return self._speeds[key]

    def lengths(self, model: ModelEntry, texts: Sequence[str]) -> np.ndarray:
        """Tokens of texts: by the model's tokenizer where it is on this machine, else by their characters."""
        key = repr(model)
        if key not in self._tokenizers:
            self._tokenizers[key] = _tokenizer(model)
        tokenizer = self._tokenizers[key]
        characters = np.array([len(text) for text in texts], dtype=np.float64)
        if tokenizer is None:
            return characters / _CHARACTERS + 1
        some = [texts[i] for i in np.linspace(0, len(texts) - 1, min(_SAMPLE, len(texts))).astype(int)]
        tokens = sum(len(ids) for ids in tokenizer(some, verbose=False)["input_ids"])
        return characters * tokens / max(1, sum(len(text) for text in some))


def _estimate(job: SweepJob, corpora: Mapping[CorpusEntry, Corpus], folder: Path, timer: _Timer) -> Estimate:
    if is_complete(folder):
        return Estimate(job.name, seconds=0.0, note="finished")
    try:
        shape = timer.shape(job.model)
    except LayerscopeError as error:
        return Estimate(job.name, note=f"unknown: {error}")
    if job.corpus is None:
        memory = _memory(shape, job.model, 0, 1)
        return Estimate(job.name, parameters=shape.parameters, memory=memory, note="texts: known once the tasks are read")
    config = profile_config(job)
    texts = corpora[job.corpus].texts
    passes = 1 + config.n_views
    tokens = float(np.minimum(timer.lengths(job.model, texts), config.max_length).sum()) * passes
    sites = len(config.sites) if all("*" not in site for site in config.sites) else 1 + shape.blocks
    return Estimate(
        job.name,
        len(texts),
        passes,
        tokens,
        shape.parameters,
        _START_S + _OVERHEAD * tokens * timer.speed(job.model),
        _memory(shape, job.model, len(texts), passes),
        len(texts) * passes * sites * shape.width * 4,
    )


def profile_config(job: SweepJob) -> ProfileConfig:
    """The checked settings of a job's profile."""
    return make_config(**{key: value for key, value in job.settings.items() if key != "batch_size"})


def _memory(shape: Shape, model: ModelEntry, texts: int, passes: int) -> int:
    """Weights, a batch, and the vectors of the few sites whose metrics are computed at once."""
    size = {"float16": 2, "bfloat16": 2, "float64": 8}.get(str(model.options.get("dtype")), 4)
    vectors = 4 * 3 * texts * passes * shape.width * 4
    return int(1.1 * size * shape.parameters + CPU_TOKENS * shape.width * _PER_TOKEN + vectors + _LIBRARIES)


def _tokenizer(model: ModelEntry) -> Any:
    from transformers import AutoTokenizer

    from layerscope.models.settings import quiet
    from layerscope.models.source import resolve

    try:
        source = resolve(model.spec, True, revision=model.revision, allow_pickle=True)
        with quiet():
            return AutoTokenizer.from_pretrained(source.path, local_files_only=True)
    except Exception:  # only a guess is lost
        return None
