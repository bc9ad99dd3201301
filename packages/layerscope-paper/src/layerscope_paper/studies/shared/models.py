"""The models of a study: how each is named, identified, loaded, profiled and scored.

A model with settings of its own is written
`org/base?bidirectional=true&adapter=org/lora&label=LLM2Vec`; the other models of the study are not
affected. The settings are those of `layerscope.load`, plus `adapter` (repeatable) and `label`.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Batch, Reducer, Site, expand_sites
from layerscope.core.files import exists
from layerscope.core.identity import model_key
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.runs import is_reserved, on_disk
from layerscope.data import Corpus, content_key
from layerscope.engines import Engine
from layerscope.errors import InvalidValueError, UnknownNameError
from layerscope.evaluation.job import evaluate
from layerscope.evaluation.run import Evaluation
from layerscope.forward import BatchRunner, read_states
from layerscope.metrics import Options, get_metric
from layerscope.models import LoadedModel, catalogue, load, open_model
from layerscope.models.load import find_source
from layerscope.models.pretrained import locate_adapter
from layerscope.models.source import files_sha256
from layerscope.profiling import Profile, profile
from layerscope.progress import Progress
from layerscope.store import RunFolder, checked

# Metrics of the studies' curves; none of them needs augmented views.
CURVES = [
    "prompt_entropy",
    "curvature",
    "dataset_entropy",
    "effective_rank",
    "sink_ratio",
    "sink_first",
]
# Metrics that the paper correlates with scores and draws in Fig. 10 and 11; three of them compare
# augmented views.
PAPER_METRICS = ["prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime"]
LAYERS = ("embed", "block.*")


@dataclass
class Request:
    """The arguments of one study; `options` are complete. Files in the folder `work` survive a
    crash."""

    models: Sequence[str | Path | LoadedModel | Spec]
    texts: Corpus | None
    options: dict[str, Any]
    seed: int
    model_options: dict[str, Any]
    final_norm: str
    max_length: int
    work: Path
    engine: Engine | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Spec:
    """One model of a study, its own settings, and its name in the results."""

    model: str | Path | LoadedModel
    label: str
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, request: Request) -> LoadedModel:
        """Load the model, after the memory of models that are no longer used is freed."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if isinstance(self.model, LoadedModel):
            return self.model
        return open_model(self.model, None, {**request.model_options, **self.options})

    @property
    def on_hub(self) -> bool:
        """True if it is a hub id (with its revision): neither a catalogue name nor a local path."""
        if isinstance(self.model, LoadedModel) or str(self.model) in catalogue():
            return False
        return not exists(str(self.model))

    def identity(self, request: Request) -> dict[str, Any]:
        """Identify the model without loading it: a hub model by its name, a local one by its
        files."""
        if isinstance(self.model, LoadedModel):
            return {"name": self.model.name, **model_key(self.model.identity), "label": self.label}
        settings = {**request.model_options, **self.options}
        if not self.on_hub:
            return {"label": self.label, **identify_files(self.model, settings)}
        return {
            "label": self.label,
            "options": decisive_options(settings),
            "hub": str(self.model),
            "revision": str(settings.get("revision")),
            "adapters": str(settings.get("adapters") or ()),
        }


def decisive_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a model that change its states, besides files; the default precision is
    always among them.

    >>> decisive_options({"device": "cpu", "bidirectional": True})
    {'dtype': 'float32', 'bidirectional': 'True'}
    """
    excluded = ("device", "device_map", "adapters", "revision")
    return {"dtype": "float32"} | {
        k: str(v) for k, v in options.items() if k not in excluded and v not in (None, False)
    }


def identify_files(model: str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Identify a model given by name before it is loaded: its files, its adapters' files and its
    options."""
    source = find_source(model, options)
    return {
        "options": decisive_options(options),
        "weights_sha256": source.weights_sha256(),
        "settings_sha256": files_sha256(
            file for pattern in ("*.json", "*.txt", "*.model") for file in source.path.glob(pattern)
        ),
        "adapters": [
            files_sha256(locate_adapter(adapter).path.glob("*"))
            for adapter in options.get("adapters") or ()
        ],
    }


def read_specs(models: Sequence[str | Path | LoadedModel | Spec]) -> list[Spec]:
    """Return the models of a request, each with a different label.

    >>> [spec.label for spec in read_specs(["a/b", "a/b?bidirectional=true", "a/b"])]
    ['a/b', 'a/b bidirectional', 'a/b (2)']
    """
    counts: dict[str, int] = {}
    specs = []
    for spec in map(read_spec, models):
        key = on_disk(spec.label)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > 1:
            spec = replace(spec, label=f"{spec.label} ({counts[key]})")
        specs.append(spec)
    return specs


def read_spec(model: str | Path | LoadedModel | Spec) -> Spec:
    """Return a model with the settings in its text."""
    if isinstance(model, Spec):
        return model
    if isinstance(model, LoadedModel):
        return Spec(model, model.name)
    if isinstance(model, Path) or "?" not in model or exists(model):
        return Spec(model, _short(model))
    name, _, query = model.partition("?")
    options: dict[str, Any] = {}
    label = None
    valid = set(inspect.signature(load).parameters) - {"spec", "adapters"} | {"adapter", "label"}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in valid:
            raise UnknownNameError(f"setting in {model!r}", key, valid)
        if key == "label":
            label = value
        elif key == "adapter":
            options["adapters"] = (*options.get("adapters", ()), value)
        elif key in ("bidirectional", "trust_remote_code", "allow_pickle"):
            if value.lower() not in ("", "true", "false"):
                raise InvalidValueError(f"{key} in {model!r} is true or false, not {value!r}.")
            options[key] = value.lower() != "false"
        else:
            options[key] = value
    suffix = "".join(
        f" {k}" if v is True else f" {k}={v}"
        for k, v in options.items()
        if k != "adapters" and v is not False
    )
    suffix += "".join(f" + {_short(adapter)}" for adapter in options.get("adapters", ()))
    return Spec(name, label or _short(name) + suffix, options)


def _short(model: str | Path) -> str:
    """Return a folder's last name, anything else as it was written."""
    path = Path(model).expanduser()
    text = str(model)
    is_path = text.startswith(("/", ".", "~")) or exists(path)
    return path.resolve().name if is_path and text not in catalogue() else text


def canonical(request: Request) -> Request:
    """Return the request with its texts ordered by content, so that intervals do not depend on the
    order in which they were given."""
    if request.texts is None:
        return request
    texts = tuple(sorted(request.texts.texts, key=content_key))
    return replace(request, texts=replace(request.texts, texts=texts))


def finished_profile(request: Request, label: str) -> Profile | None:
    """Return a profile in the study's work folder, if it is complete. The study's key was checked
    before."""
    folder = RunFolder(request.work / folder_name(label))
    complete = (folder.manifest() or {}).get("status") == "complete"
    return Profile.load(folder.path) if complete else None


def profile_of(
    request: Request,
    spec: Spec,
    metrics: Sequence[str],
    bar: Progress,
    sites: Sequence[str] = LAYERS,
    **settings: Any,
) -> Profile:
    """Return the profile of one model, from the study's work folder if it is complete there."""
    if (run := finished_profile(request, spec.label)) is not None:
        return run
    assert request.texts is not None
    bar.begin(f"loading {spec.label}|", 1)
    model: Any = spec.model
    if runs_elsewhere(request):
        settings |= {**request.model_options, **spec.options, "engine": request.engine}
    else:
        model = spec.open(request)
    return profile(
        model,
        request.texts,
        out=request.work / folder_name(spec.label),
        metrics=metrics,
        sites=sites,
        final_norm=request.final_norm,
        max_length=request.max_length,
        seed=request.seed,
        progress=bar,  # type: ignore[arg-type]
        batch_size=request.batch_size,
        **settings,
    )


def read_prompts(
    model: LoadedModel,
    sites: Sequence[Site],
    prompts: Sequence[Sequence[int] | np.ndarray],
    final_norm: str,
    look: Callable[[int, int, Tensor, Tensor], None],
) -> None:
    """Run prompts through a model one by one, without padding, in any order.

    `look(prompt, site, raw states, states)` sees each site's (tokens, width).
    """

    def look_at_row(
        numbers: list[int], batch: Batch, site: int, raw: Tensor, state: Tensor
    ) -> None:
        look(numbers[0], site, raw[0], state[0])

    read_states(
        model,
        prompts,
        sites,
        final_norm,  # type: ignore[arg-type]
        look_at_row,
        batch_size=1,
    )


def reduce_prompts(
    model: LoadedModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    final_norm: str,
    bar: Progress,
    *fields: str,
) -> dict[str, np.ndarray]:
    """Return fields of token ids at every layer: mean-pooled `vectors` (layers, prompts, D), and
    prompt entropies (layers, prompts).

    The entropies are `keep` (of all tokens) and `drop` (without the sink token). A prompt without a
    token has NaN.
    """
    sites = expand_sites(None, model.anatomy)
    usable = [i for i, row in enumerate(prompts) if len(row)]
    size = (len(sites), len(prompts))
    arrays = {name: np.full(size, np.nan) for name in fields if name != "vectors"}
    metrics = [get_metric("prompt_entropy")] if arrays else []
    if "vectors" in fields:
        arrays["vectors"] = np.full((*size, model.width), np.nan, dtype=np.float32)
    with Reducer(
        model.anatomy,
        sites,
        final_norm,  # type: ignore[arg-type]
        Options(),
        metrics,
    ) as reducer:

        def store(numbers: list[int], batch: Batch) -> None:
            reduced = reducer.measure(batch, model.run, token_level=bool(metrics))
            rows = [usable[i] for i in numbers]
            for name, values in arrays.items():
                if name == "vectors":
                    values[:, rows] = reduced.pooled
                else:
                    values[:, rows] = reduced.tokens[f"prompt_entropy.{name}"]
            bar.advance(len(numbers))

        BatchRunner(model).run([np.asarray(prompts[i]) for i in usable], store)
    return arrays


def runs_elsewhere(request: Request) -> bool:
    """Return True if other processes run the models, each loading its own."""
    return request.engine is not None and request.engine.remote


def folder_name(label: str) -> str:
    """Return a folder's name for a model; different labels have different names."""
    plain = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "model"
    plain = f"_{plain}" if is_reserved(plain) else plain
    if plain == label:
        return plain
    return f"{plain[:80]}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def max_tokens(request: Request, model: LoadedModel) -> int:
    """Return the number of tokens read of a text: as requested, at most as many as the model
    takes."""
    return min(request.max_length, model.max_length or request.max_length)


def cached_arrays(
    file: Path,
    measure: Callable[[], dict[str, np.ndarray]],
    bar: Progress | None = None,
    units: int = 0,
) -> dict[str, np.ndarray]:
    """Return the arrays in a file, or measure and store them; the bar advances by `units` that are
    not measured again."""
    arrays = checked.read_or_discard(file, checked.read_arrays)
    if arrays is None:
        arrays = measure()
        checked.write_arrays(file, arrays)
    elif bar is not None:
        bar.advance(units)
    return arrays


def score_tasks(
    request: Request, model: LoadedModel, label: str, **settings: Any
) -> tuple[Evaluation, list[str]]:
    """Return the scores of every layer on the tasks of the options, and a note for each task that
    failed."""
    options = request.options
    evaluation = evaluate(
        model,
        options["tasks"],
        out=request.work / f"{folder_name(label)}-scores",
        readouts=[DEFAULT_READOUT],
        data_dir=options["data_dir"] or None,
        sample=options["items"] or None,
        max_length=request.max_length,
        seed=request.seed,
        batch_size=request.batch_size,
        progress=False,
        **settings,
    )
    notes = [f"{task['task']} failed: {task['reason']}" for task in evaluation.failed]
    return evaluation, notes
