"""The models of a study: how each is written, told apart, loaded, profiled and scored.

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

# What each study shows beside prompt entropy; none of it needs augmented views.
CURVES = [
    "prompt_entropy",
    "curvature",
    "dataset_entropy",
    "effective_rank",
    "sink_ratio",
    "sink_first",
]
# What the paper correlates with scores and draws in Fig. 10 and 11; three of them compare augmented
# views.
PAPER_METRICS = ["prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime"]
LAYERS = ("embed", "block.*")


@dataclass
class Request:
    """What a user asked a study for; `options` are complete. What a study puts into `work` survives
    a crash."""

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
    """One model of a study: what to load, with which settings of its own, and what to call it."""

    model: str | Path | LoadedModel
    label: str
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, request: Request) -> LoadedModel:
        """Load it, once what models opened before took is given back."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        options = (
            {} if isinstance(self.model, LoadedModel) else {**request.model_options, **self.options}
        )
        return open_model(self.model, None, options)

    @property
    def on_hub(self) -> bool:
        """Whether it is a hub id (with its revision), and neither a catalogue name nor something on
        this machine."""
        if isinstance(self.model, LoadedModel) or str(self.model) in catalogue():
            return False
        return not exists(str(self.model))

    def identity(self, request: Request) -> dict[str, Any]:
        """What tells it from other models, without loading it; a hub model is known by its name,
        without a download."""
        if isinstance(self.model, LoadedModel):
            return {"name": self.model.name, **model_key(self.model.identity), "label": self.label}
        settings = {**request.model_options, **self.options}
        if self.on_hub:
            named = {
                "hub": str(self.model),
                "revision": settings.get("revision"),
                "adapters": settings.get("adapters") or (),
            }
            return {
                "label": self.label,
                "options": decisive_options(settings),
                **{k: str(v) for k, v in named.items()},
            }
        return {"label": self.label, **identify_files(self.model, settings)}


def decisive_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a model that change its states, besides files; the default precision whether
    it was given or not.

    >>> decisive_options({"device": "cpu", "bidirectional": True})
    {'dtype': 'float32', 'bidirectional': 'True'}
    """
    elsewhere = ("device", "device_map", "adapters", "revision")
    return {"dtype": "float32"} | {
        k: str(v) for k, v in options.items() if k not in elsewhere and v not in (None, False)
    }


def identify_files(model: str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a model given by name from others before it is loaded: its files, its adapters'
    and its options."""
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
    """The models of a request, each with a name of its own.

    >>> [spec.label for spec in read_specs(["a/b", "a/b?bidirectional=true", "a/b"])]
    ['a/b', 'a/b bidirectional', 'a/b (2)']
    """
    specs = [read_spec(model) for model in models]
    seen: dict[str, int] = {}
    out = []
    for spec in specs:
        key = on_disk(spec.label)
        seen[key] = seen.get(key, 0) + 1
        label = spec.label if seen[key] == 1 else f"{spec.label} ({seen[key]})"
        out.append(Spec(spec.model, label, spec.options))
    return out


def read_spec(given: str | Path | LoadedModel | Spec) -> Spec:
    """One model, as it is written."""
    if isinstance(given, Spec):
        return given
    if isinstance(given, LoadedModel):
        return Spec(given, given.name)
    if isinstance(given, Path) or "?" not in given or exists(given):
        return Spec(given, _short(given))
    name, _, query = given.partition("?")
    options: dict[str, Any] = {}
    label = None
    known = set(inspect.signature(load).parameters) - {"spec", "adapters"} | {
        "adapter",
        "label",
    }
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            raise UnknownNameError(f"setting in {given!r}", key, known)
        if key == "label":
            label = value
        elif key == "adapter":
            options["adapters"] = (*options.get("adapters", ()), value)
        elif key in ("bidirectional", "trust_remote_code", "allow_pickle"):
            if value.lower() not in ("", "true", "false"):
                raise InvalidValueError(f"{key} in {given!r} is true or false, not {value!r}.")
            options[key] = value.lower() != "false"
        else:
            options[key] = value
    extra = "".join(
        f" {k}" if v is True else f" {k}={v}"
        for k, v in options.items()
        if k != "adapters" and v is not False
    )
    extra += "".join(f" + {_short(adapter)}" for adapter in options.get("adapters", ()))
    return Spec(name, label or _short(name) + extra, options)


def _short(model: str | Path) -> str:
    """A folder by its name, anything else as it was written."""
    path = Path(model).expanduser()
    text = str(model)
    is_path = text.startswith(("/", ".", "~")) or exists(path)
    return path.resolve().name if is_path and text not in catalogue() else text


def canonical(request: Request) -> Request:
    """The same request with its texts in an order of their own: intervals then do not depend on the
    order they came in."""
    if request.texts is None:
        return request
    return replace(
        request,
        texts=replace(request.texts, texts=tuple(sorted(request.texts.texts, key=content_key))),
    )


def finished_profile(request: Request, label: str) -> Profile | None:
    """A profile in the study's work folder, if it is finished there. It belongs to this very study:
    its key was checked."""
    folder = RunFolder(request.work / folder_name(label))
    done = (folder.manifest() or {}).get("status") == "complete"
    return Profile.load(folder.path) if done else None


def profile_of(
    request: Request,
    spec: Spec,
    metrics: Sequence[str],
    bar: Progress,
    sites: Sequence[str] = LAYERS,
    **settings: Any,
) -> Profile:
    """The profile of one model, from the study's work folder if it is finished there."""
    folder = request.work / folder_name(spec.label)
    if (found := finished_profile(request, spec.label)) is not None:
        return found
    assert request.texts is not None
    remote = runs_elsewhere(request)
    bar.begin(f"loading {spec.label}|", 1)
    model: Any = spec.model if remote else spec.open(request)
    if not remote:
        _note_tokens(folder, tokens_sha256(model, request.texts.texts, most_tokens(request, model)))
    where: dict[str, Any] = {
        **request.model_options,
        **spec.options,
    }
    run = profile(
        model,
        request.texts,
        out=folder,
        metrics=metrics,
        sites=sites,
        final_norm=request.final_norm,
        max_length=request.max_length,
        seed=request.seed,
        progress=bar,  # type: ignore[arg-type]
        batch_size=request.batch_size,
        **({**where, "engine": request.engine} if remote else {}),
        **settings,
    )
    if remote:
        _note_tokens(folder, lengths_sha256(run))
    return run


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

    def one(numbers: list[int], batch: Batch, site: int, raw: Tensor, state: Tensor) -> None:
        look(numbers[0], site, raw[0], state[0])

    read_states(model, prompts, sites, final_norm, one, batch_size=1)  # type: ignore[arg-type]


def reduce_prompts(
    model: LoadedModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    final_norm: str,
    bar: Progress,
    *fields: str,
) -> dict[str, np.ndarray]:
    """Fields of token ids at every layer: mean-pooled `vectors` (layers, prompts, D), and prompt
    entropies (layers, prompts).

    The entropies are `keep` (of all tokens) and `drop` (without the sink token). A prompt without a
    token has NaN.
    """
    sites = expand_sites(None, model.anatomy)
    usable = [i for i, row in enumerate(prompts) if len(row)]
    size = (len(sites), len(prompts))
    entropy = {*fields} != {"vectors"}
    out = {name: np.full(size, np.nan) for name in fields if name != "vectors"}
    if "vectors" in fields:
        out["vectors"] = np.full((*size, model.width), np.nan, dtype=np.float32)
    with Reducer(
        model.anatomy,
        sites,
        final_norm,  # type: ignore[arg-type]
        Options(),
        [get_metric("prompt_entropy")] if entropy else [],
    ) as reducer:

        def keep(numbers: list[int], batch: Batch) -> None:
            reduced = reducer.measure(batch, model.run, token_level=entropy)
            for name, values in out.items():
                values[:, [usable[i] for i in numbers]] = (
                    reduced.pooled
                    if name == "vectors"
                    else reduced.tokens[f"prompt_entropy.{name}"]
                )
            bar.advance(len(numbers))

        BatchRunner(model).run([np.asarray(prompts[i]) for i in usable], keep)
    return out


def runs_elsewhere(request: Request) -> bool:
    """Whether other processes than this one run the models, each loading its own."""
    return request.engine is not None and request.engine.remote


def token_fingerprint(request: Request, spec: Spec) -> str | None:
    """A hash of the token ids that the model's tokenizer makes of the texts; None where it is not
    known."""
    file = _facts_file(request.work / folder_name(spec.label))
    facts = checked.read_or_discard(file, checked.read_checked_json)
    return None if facts is None else facts.get("tokens_sha256")


def tokens_sha256(model: LoadedModel, texts: Sequence[str], limit: int) -> str:
    """The same for models that read the same tokens; a thousand texts tell."""
    return hashlib.sha256(str(model.tokenize(list(texts[:1000]), limit).ids).encode()).hexdigest()


def lengths_sha256(run: Profile) -> str:
    """The same from numbers of tokens alone, where the tokenizer is not in this process: it tells
    most tokenizers apart."""
    counts = (
        run.prompts.drop_duplicates("prompt")
        .sort_values("prompt")["tokens"]
        .to_numpy(dtype=np.int64)
    )
    return "lengths-" + hashlib.sha256(counts.tobytes()).hexdigest()


def folder_name(label: str) -> str:
    """A folder's name for a model; different labels have different ones."""
    plain = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "model"
    plain = f"_{plain}" if is_reserved(plain) else plain
    if plain == label:
        return plain
    return f"{plain[:80]}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def _note_tokens(folder: Path, digest: str) -> None:
    checked.write_json(_facts_file(folder), {"tokens_sha256": digest})


def _facts_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.json")  # hidden: what is seen in there are runs


def most_tokens(request: Request, model: LoadedModel) -> int:
    """How many tokens of a text are read: what was asked for, and no more than the model takes."""
    return (
        request.max_length
        if model.max_length is None
        else min(request.max_length, model.max_length)
    )


def kept_arrays(
    file: Path,
    measure: Callable[[], dict[str, np.ndarray]],
    bar: Progress | None = None,
    units: int = 0,
) -> dict[str, np.ndarray]:
    """What `measure` gives, from the file if it is there; the bar then moves by what need not be
    done again."""
    stored = checked.read_or_discard(file, checked.read_arrays)
    if stored is None:
        stored = measure()
        checked.write_arrays(file, stored)
    elif bar is not None:
        bar.advance(units)
    return stored


def score_tasks(
    request: Request, model: LoadedModel, label: str, **more: Any
) -> tuple[Evaluation, list[str]]:
    """Scores of every layer on the tasks that the options name, and which of them could not be
    scored."""
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
        **more,
    )
    return evaluation, [
        f"{one['task']} could not be scored: {one['reason']}" for one in evaluation.failed
    ]
