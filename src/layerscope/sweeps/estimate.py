"""What a plan will take, before it starts: texts, tokens, time, memory, disk and downloads of every step. Loads no weights.

Time is that of the forward passes: timed here on models of the same shape with one and two blocks and no weights, or, where a
model's config is not on this machine, from its size and the rate of a product of matrices. Studies add the eigenvalues of their
token matrices, hub models their download at an assumed rate. It tells minutes from hours from days.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope.capture.batches import CPU_TOKENS, GPU_TOKENS
from layerscope.data import Corpus
from layerscope.errors import LayerscopeError
from layerscope.models.catalogue import catalogue
from layerscope.models.settings import pick_device, pick_dtype, quiet
from layerscope.models.source import resolve
from layerscope.profiling.config import ProfileConfig, make_config
from layerscope.spectra import eigvalsh
from layerscope.studies.base import get_study
from layerscope.studies.shared.models import Spec
from layerscope.sweeps.plan import SweepPlan
from layerscope.sweeps.steps import PlannedCorpus, Step

DOWNLOAD_RATE = 50e6  # bytes per second: an assumption
_EFFICIENCY = 0.5  # of a large product of matrices, for a model's own products
_OVERHEAD = 1.2  # of a profile beside its passes: metrics and intervals, views, writing (docs/scaling.md)
_START = {"profile": 5.0, "study": 15.0}  # seconds to load a model and write the results; a study draws a figure too
_LIBRARIES = 0.8 * 2**30
_PER_TOKEN = {"cpu": 4 * 48, "cuda": 4 * 12}  # bytes per feature of a token that is in a batch
_BYTES = {"float16": 2, "bfloat16": 2, "auto": 2, "float64": 8}  # of a weight, if not 4
_CHARACTERS = 4.2  # of a token, where no tokenizer is at hand
_SAMPLE = 64  # texts that are tokenized to tell how many tokens all of them have
_TEXTS = {"lee": 300}  # texts of a corpus that is used whole and is not read for an estimate; others are taken as 1000
_READ = {"profile": "they", "evaluate": "the tasks", "probe": "the data"}
_NO_CONFIG = ("batch_size", "images", "limit")  # settings of a profile that say what it reads, and how fast
_BATCH_TOKENS, _LENGTH, _REPEATS = 512, 64, 2  # of the timed batch
_LONG_ENOUGH = 0.02  # seconds of a call that is timed


@dataclass(frozen=True)
class StepEstimate:
    """Of one step. What is not known is None, and `note` says why; `unknown` names models that are not in the numbers."""

    job: str
    texts: int | None = None
    passes: float | None = None
    tokens: float | None = None
    parameters: int | None = None
    seconds: float | None = None
    memory: float | None = None
    disk: float | None = None
    download: float = 0.0
    note: str = ""
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """A model's size. `config` is transformers', if at hand; `bytes` is the size of its files, where the plan says so."""

    parameters: int
    blocks: int
    width: int
    config: Any = None
    bytes: int | None = None
    checkpoints: int = 1
    local: bool = False


class UnknownShapeError(LayerscopeError):
    """A model whose size is not known without downloading it."""


@dataclass
class MachineSpeed:
    """Rates of this machine: operations per second by dtype, seconds per matrix of eigenvalues by its size.

    Each is measured when it is first asked for, in about a second.
    """

    device: str
    flops: dict[str, float] = field(default_factory=dict)
    eigen: dict[int, float] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """`cuda` or `cpu`."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    def rate(self, dtype: str) -> float:
        """Operations per second of a large product of matrices."""
        if dtype not in self.flops:
            kind = getattr(torch, "bfloat16" if dtype == "auto" else dtype)
            for size in (8192,) if self.kind == "cuda" else (96, 192, 384, 768):  # a CPU without the dtype is very slow
                a = torch.randn(size, size, device=self.device, dtype=kind)
                took = _seconds(lambda a=a: a @ a, self.device)  # type: ignore[misc]
                self.flops[dtype] = 2 * size**3 / took
                if took > _LONG_ENOUGH:
                    break
        return self.flops[dtype]

    def matrix(self, size: int) -> float:
        """Seconds for the eigenvalues of one token matrix."""
        if size not in self.eigen:
            many, dtype = (64, torch.float32) if self.kind == "cuda" else (2, torch.float64)
            rows = torch.randn(many, size, size, device=self.device, dtype=dtype)
            gram = rows @ rows.mT
            self.eigen[size] = _seconds(lambda: eigvalsh(gram), self.device) / many
        return self.eigen[size]


def estimate_all(
    plan: SweepPlan, corpora: Mapping[PlannedCorpus, Corpus], out: Path | None = None, machine: MachineSpeed | None = None
) -> list[StepEstimate]:
    """An estimate of every step. Each model's shape is timed once; files that steps share are downloaded once."""
    device = next((step.device for step in plan.steps if step.device), None)
    costs = _Costs(plan, corpora, machine or MachineSpeed(str(pick_device(device))))
    return [costs.of(step, None if out is None else out / step.name) for step in plan.steps]


def total_seconds(estimates: Sequence[StepEstimate], workers: int) -> float:
    """Of all steps that have an estimate, shared among workers: no less than the longest."""
    each = [e.seconds for e in estimates if e.seconds]
    return max([sum(each) / max(1, workers), *each]) if each else 0.0


class _Costs:
    """Shapes, speeds and tokenizers by model, each looked up once."""

    def __init__(self, plan: SweepPlan, corpora: Mapping[PlannedCorpus, Corpus], machine: MachineSpeed) -> None:
        self._plan, self._corpora, self._machine = plan, corpora, machine
        self._shapes: dict[str, Shape] = {}
        self._speeds: dict[tuple[int, int, int, str, str], float] = {}
        self._tokenizers: dict[str, Any] = {}
        self._fetched: set[str] = set()

    def of(self, step: Step, folder: Path | None) -> StepEstimate:
        """One step."""
        if folder is not None and step.is_complete(folder):
            return StepEstimate(step.name, seconds=0.0, note="finished")
        return self._study(step) if step.kind == "study" else self._run(step)

    def _run(self, step: Step) -> StepEstimate:
        """A profile, an evaluation or a probe of one model."""
        spec = step.models[0]
        try:
            shape = self._shape(spec)
        except LayerscopeError as error:
            return StepEstimate(step.name, note=f"unknown: {error}")
        dtype = str(step.options_of(spec).get("dtype", "float32"))
        if step.corpus is None:
            note = f"{'images' if step.kind == 'profile' else 'texts'}: known once {_READ[step.kind]} are read"
            return StepEstimate(step.name, parameters=shape.parameters, memory=self._memory(shape, dtype), note=note)
        config = profile_config(step)
        passes = 1 + config.n_views
        read = self._corpora.get(step.corpus)
        count = _count(step.corpus) if read is None else len(read.texts)
        lengths = np.full(count, float(config.max_length)) if read is None else self._lengths(spec, read.texts)
        tokens = float(np.minimum(lengths, config.max_length).sum()) * passes
        sites = len(config.sites) if all("*" not in site for site in config.sites) else 1 + shape.blocks
        download = self._download(spec, shape, [str(spec.model)])
        speed = self._speed(spec, shape, step, dtype, int(config.max_length))
        return StepEstimate(
            step.name,
            texts=count,
            passes=passes,
            tokens=tokens,
            parameters=shape.parameters,
            seconds=_START["profile"] + _OVERHEAD * tokens * speed + download / DOWNLOAD_RATE,
            memory=self._memory(shape, dtype, count, passes),
            disk=count * passes * sites * shape.width * 4,
            download=download,
        )

    def _study(self, step: Step) -> StepEstimate:
        """A study of some models: passes over the texts, and eigenvalues with and without the sink token."""
        study = get_study(step.study)
        options = study.fill(step.options)
        length, prompts = int(step.settings["max_length"]), 0 if step.corpus is None else _count(step.corpus)
        seconds = memory = download = tokens = 0.0
        parameters, unknown = 0, []
        for spec in step.models:
            try:
                shape = self._shape(spec)
            except LayerscopeError:
                unknown.append(spec.label)
                continue
            dtype = str(spec.options.get("dtype", step.settings["dtype"]))
            passes = study.passes(options) * shape.checkpoints
            tokens += prompts * length * passes
            parameters += shape.parameters
            seconds += prompts * length * passes * self._speed(spec, shape, step, dtype, length)
            seconds += 2 * prompts * passes * study.sites(shape.blocks) * self._machine.matrix(length)
            versions = [f"{spec.model}@{each}" for each in options.get("steps") or ()] or [str(spec.model)]
            seconds += _START["study"] * max(len(versions), shape.checkpoints)
            memory = max(memory, self._memory(shape, dtype))
            download += self._download(spec, shape, versions)
        note = f"nothing is known of {', '.join(unknown)}" if unknown else ""
        known = len(unknown) < len(step.models) or not step.models
        return StepEstimate(
            step.name,
            texts=prompts or None,
            tokens=tokens or None,
            parameters=parameters or None,
            seconds=seconds + download / DOWNLOAD_RATE if known else None,
            memory=memory or None,
            download=download,
            note=note,
            unknown=tuple(unknown),
        )

    def _shape(self, spec: Spec) -> Shape:
        key = repr(spec)
        if key not in self._shapes:
            self._shapes[key] = shape_of(spec, self._plan.facts, self._plan.offline)
        return self._shapes[key]

    def _speed(self, spec: Spec, shape: Shape, step: Step, dtype: str, length: int) -> float:
        device = str(step.options_of(spec).get("device") or self._machine.device)
        if shape.config is None:
            return seconds_per_token(shape, dtype, device, length, self._machine)
        key = (shape.parameters, shape.blocks, shape.width, dtype, device)  # checkpoints of one model have one shape
        if key not in self._speeds:
            self._speeds[key] = seconds_per_token(shape, dtype, device, length, self._machine)
        return self._speeds[key]

    def _memory(self, shape: Shape, dtype: str, texts: int = 0, passes: float = 1) -> float:
        """Weights, a batch, and the vectors of the few sites whose metrics are computed at once."""
        batch = (GPU_TOKENS if self._machine.kind == "cuda" else CPU_TOKENS) * _PER_TOKEN[self._machine.kind] * shape.width
        vectors = 4 * 3 * texts * passes * shape.width * 4
        return 1.1 * _BYTES.get(dtype, 4) * shape.parameters + batch + vectors + _LIBRARIES

    def _download(self, spec: Spec, shape: Shape, versions: Sequence[str]) -> float:
        """Bytes that are not on this machine, and that no step before has downloaded."""
        if not spec.on_hub or shape.local:
            return 0.0
        new = set(versions) - self._fetched
        self._fetched.update(versions)
        return float(len(new) * (shape.bytes or 2 * shape.parameters))

    def _lengths(self, spec: Spec, texts: Sequence[str]) -> np.ndarray:
        """Tokens of texts: by the model's tokenizer where it is on this machine, else by their characters."""
        key = repr(spec)
        if key not in self._tokenizers:
            self._tokenizers[key] = _tokenizer(spec)
        tokenizer = self._tokenizers[key]
        characters = np.array([len(text) for text in texts], dtype=np.float64)
        if tokenizer is None:
            return characters / _CHARACTERS + 1
        some = [texts[i] for i in np.linspace(0, len(texts) - 1, min(_SAMPLE, len(texts))).astype(int)]
        tokens = sum(len(ids) for ids in tokenizer(some, verbose=False)["input_ids"])
        return characters * tokens / max(1, sum(len(text) for text in some))


def profile_config(step: Step) -> ProfileConfig:
    """The checked settings of a step's profile."""
    kind = "texts" if step.corpus is not None else "images"
    return make_config(kind=kind, **{key: value for key, value in step.settings.items() if key not in _NO_CONFIG})


def _count(corpus: PlannedCorpus) -> int:
    """Texts of a corpus that is not read yet."""
    return corpus.limit or _TEXTS.get(corpus.data, 1000)


# --- the shape of a model -------------------------------------------------------------------------------------------------------


def shape_of(spec: Spec, facts: Mapping[str, Mapping[str, Any]] | None = None, offline: bool = False) -> Shape:
    """The shape of a model: from the plan, its files, the catalogue or, for a hub model, its config, which is downloaded."""
    name = str(spec.model).partition("@")[0]
    if facts and name in facts:
        return Shape(**facts[name])
    folder = Path(name).expanduser()
    inside = sorted(path for path in folder.iterdir() if (path / "config.json").is_file()) if folder.is_dir() else []
    if inside and not (folder / "config.json").is_file():  # a folder of checkpoints
        last = shape_of(Spec(inside[-1], inside[-1].name, spec.options), facts, offline)
        return replace(last, checkpoints=len(inside))
    config, local = _config(spec, offline)
    if config is None:
        entry = catalogue()[name]  # not fetched yet
        return Shape(entry.parameters, entry.blocks, entry.width)
    text = getattr(config, "text_config", None) or config
    blocks, width = getattr(text, "num_hidden_layers", None), getattr(text, "hidden_size", None)
    if blocks is None or width is None:
        raise UnknownShapeError(f"{spec.label}: its config names no num_hidden_layers and hidden_size.")
    return Shape(sum(p.numel() for p in _empty(config).parameters()), int(blocks), int(width), config, local=local)


def seconds_per_token(shape: Shape, dtype: str, device: str, length: int, machine: MachineSpeed) -> float:
    """Time of a forward pass per token: from one timed batch of models with one and two blocks, else from the model's size."""
    if shape.config is not None:
        picked = pick_dtype(dtype)
        target = torch.device(device)
        try:
            used = picked if isinstance(picked, torch.dtype) else torch.float32
            one, two = (_timed(shape.config, blocks, target, used) for blocks in (1, 2))
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError):
            pass  # a shape that cannot be cut down: by its size then
        else:
            block = max(two - one, 0.1 * one)
            return (max(one - block, 0.0) + shape.blocks * block) / _BATCH_TOKENS
    work = 2 * shape.parameters + 4 * shape.blocks * shape.width * length
    return work / (_EFFICIENCY * machine.rate(dtype))


def _config(spec: Spec, offline: bool) -> tuple[Any, bool]:
    """transformers' config of a model, None where only the catalogue knows it; and whether its files are on this machine."""
    from transformers import AutoConfig

    trusted, revision = bool(spec.options.get("trust_remote_code")), spec.options.get("revision")
    try:
        source = resolve(
            str(spec.model), True, revision=revision, allow_pickle=True, trust_remote_code=trusted
        )  # on this machine
        if source.gguf is not None:
            raise UnknownShapeError(f"{spec.label}: a GGUF file's shape is known only when it is loaded.")
        return AutoConfig.from_pretrained(source.path, trust_remote_code=trusted, local_files_only=True), True
    except UnknownShapeError:
        raise
    except (LayerscopeError, OSError, ValueError, json.JSONDecodeError) as error:
        if str(spec.model) in catalogue():
            return None, False
        unknown = UnknownShapeError(f"{spec.label}: {' '.join(str(error).split())}")
        if offline:
            raise unknown from error
        try:
            repo, _, at = str(spec.model).partition("@")
            return AutoConfig.from_pretrained(repo, revision=revision or at or None, trust_remote_code=trusted), False
        except Exception:
            raise unknown from error


def _tokenizer(spec: Spec) -> Any:
    from transformers import AutoTokenizer

    try:
        source = resolve(str(spec.model), True, revision=spec.options.get("revision"), allow_pickle=True)
        with quiet():
            return AutoTokenizer.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)
    except Exception:  # only a guess is lost
        return None


def _empty(config: Any) -> torch.nn.Module:
    from transformers import AutoModel

    with quiet(), torch.device("meta"):
        module: torch.nn.Module = AutoModel.from_config(config)
    return module.eval()


def _timed(config: Any, blocks: int, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds of one batch through a model of this shape with so many blocks and random weights."""
    from transformers import AutoModel

    small = copy.deepcopy(config)
    small.num_hidden_layers = blocks
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:blocks]
    with quiet(), torch.device(device):
        module = AutoModel.from_config(small).to(dtype).eval()
    ids = torch.ones((_BATCH_TOKENS // _LENGTH, _LENGTH), dtype=torch.long, device=device)
    with torch.inference_mode():
        return _seconds(lambda: module(input_ids=ids), str(device), _REPEATS)


def _seconds(work: Callable[[], Any], device: str, repeats: int = 3) -> float:
    """Of one call: the best of some, after one that does not count."""
    best = float("inf")
    for i in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - start) if i else best
    return best


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
