"""Profiles of a study's models: each model is loaded once, alone, and a finished profile is never computed again."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope.models import LoadedModel
from layerscope.profiling import Run, profile
from layerscope.profiling.plan import text_key
from layerscope.progress import Progress
from layerscope.store import RunFolder, atomic
from layerscope.studies.base import Request
from layerscope.studies.shared.specs import Spec

# What each study shows beside prompt entropy; none of it needs augmented views.
CURVES = ["prompt_entropy", "curvature", "dataset_entropy", "effective_rank", "sink_ratio", "sink_first"]
LAYERS = ("embed", "block.*")


def canonical(request: Request) -> Request:
    """The same request with its texts in an order of their own: intervals then do not depend on the order they came in."""
    if request.texts is None:
        return request
    return replace(request, texts=replace(request.texts, texts=tuple(sorted(request.texts.texts, key=text_key))))


def profile_of(
    request: Request, spec: Spec, metrics: Sequence[str], bar: Progress, sites: Sequence[str] = LAYERS, **settings: Any
) -> Run:
    """The profile of one model, from the study's work folder if it is finished there."""
    folder = request.work / folder_name(spec.label)
    held = RunFolder(folder).manifest()
    if held is not None and held.get("status") == "complete":
        return Run.load(folder)  # the folder belongs to this very study: its key was checked before
    assert request.texts is not None
    remote = runs_elsewhere(request)
    bar.begin(f"loading {spec.label}|", 1)
    model: Any = spec.model if remote else spec.open(request)
    if not remote:
        limit = request.max_length if model.max_length is None else min(request.max_length, model.max_length)
        _note_tokens(folder, tokens_sha256(model, request.texts.texts, limit))
    where: dict[str, Any] = {"model_options": {**request.model_options, **spec.options}, "offline": request.offline}
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
        **({**where, "engine": request.engine} if remote else {}),
        **settings,
    )
    if remote:
        _note_tokens(folder, lengths_sha256(run))
    if not isinstance(spec.model, LoadedModel):
        del model
        free_memory()
    return run


def runs_elsewhere(request: Request) -> bool:
    """Whether other processes than this one run the models, each loading its own."""
    engine = request.engine
    return engine not in (None, "local") and bool(getattr(engine, "remote", True))


def token_fingerprint(request: Request, spec: Spec) -> str | None:
    """A hash of the token ids that the model's tokenizer makes of the texts; None where it is not known."""
    file = _facts_file(request.work / folder_name(spec.label))
    return json.loads(file.read_text(encoding="utf-8")).get("tokens_sha256") if file.is_file() else None


def tokens_sha256(model: LoadedModel, texts: Sequence[str], limit: int) -> str:
    """The same for models that read the same tokens."""
    digest = hashlib.sha256()
    for start in range(0, len(texts), 2000):
        for ids in model.tokenize(list(texts[start : start + 2000]), limit).ids:
            digest.update(np.array([len(ids), *ids], dtype=np.int64).tobytes())
    return digest.hexdigest()


def lengths_sha256(run: Run) -> str:
    """The same from numbers of tokens alone, where the tokenizer is not in this process: it tells most tokenizers apart."""
    counts = run.prompts.drop_duplicates("prompt").sort_values("prompt")["tokens"].to_numpy(dtype=np.int64)
    return "lengths-" + hashlib.sha256(counts.tobytes()).hexdigest()


def folder_name(label: str) -> str:
    """A folder's name for a model; different labels have different ones."""
    plain = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "model"
    if plain == label:
        return plain
    return f"{plain[:80]}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def free_memory() -> None:
    """Give back what a model that is no longer used took."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _note_tokens(folder: Path, digest: str) -> None:
    atomic.write_json(_facts_file(folder), {"tokens_sha256": digest})


def _facts_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.json")  # hidden: what is seen in there are runs
