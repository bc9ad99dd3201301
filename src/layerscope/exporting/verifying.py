"""Verification: an exported folder is loaded in a fresh process, and its vectors are compared with
those that layerscope captured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from layerscope.capture import expand_sites
from layerscope.core.heads import Head
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.errors import ExportError
from layerscope.exporting import reload_child
from layerscope.exporting.cutting import capture_states
from layerscope.exporting.draft import Draft
from layerscope.models import LoadedModel
from layerscope.vectors.encoder import EncodeRequest, TextEncoder
from layerscope.vectors.tokenize import TokenizedText, tokenize_texts

__all__ = ["cosine_distances", "pooled_vectors"]

TOLERANCE = {"float64": 1e-5, "float32": 1e-5}
HALF_TOLERANCE = 5e-3
"""Half precision rounds every sum, and a batch's shape changes their order."""
_PROBES = 5
_LONGEST_PROBE = 3000  # characters: every token of a probe is compared
_BATCH = 4  # the texts differ much in length: a large batch would be mostly padding
_TIMED = 8
_ROUNDS = 2
_SMALLEST = 1e-30


@dataclass(frozen=True)
class Verification:
    """The largest differences between the reloaded folder and what was captured.

    `cosine_distance` is over all texts, `state_error` over the tokens of a few. `texts_per_second`
    is that of the whole model (`original`) and of the blocks in the folder (`export`).
    """

    texts: int
    cut_texts: int
    cosine_distance: float
    tolerance: float
    state_error: float
    texts_per_second: dict[str, float]
    versions: dict[str, str]


def verify(draft: Draft) -> Verification:
    """Reload a folder in a fresh process and compare it with what was captured.

    Raises an `ExportError` if they differ. Of two sides, the one that differs more is returned.
    """
    sides = draft.by_side()
    with tempfile.TemporaryDirectory(prefix="layerscope-verify-") as scratch:
        arrays, versions = reload([_job(side) for side in sides], Path(scratch))
    if versions.pop("layerscope_loaded"):
        raise ExportError(
            "the fresh process loaded layerscope, so the folder was not shown to work without it."
        )
    pairs = zip(sides, arrays, strict=True)
    checks = [_compare(side, reloaded, versions) for side, reloaded in pairs]
    return max(checks, key=lambda check: check.cosine_distance)


def _job(draft: Draft) -> dict[str, Any]:
    """Return what the fresh process reads."""
    short = [text for text in draft.texts if len(text) < _LONGEST_PROBE]
    count = max(1, min(_PROBES, len(short) // 3))
    return {
        "folder": str(draft.folder.resolve()),  # the fresh process works elsewhere
        "texts": draft.texts,
        "probes": short[:: max(1, len(short) // count)][:count],
        "index": draft.route.index,
        "side": None if draft.side is None else draft.side.name,
    }


def reload(
    jobs: Sequence[dict[str, Any]], scratch: Path
) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
    """Return the arrays of each job from an offline process of its own, and the versions there."""
    outputs = [scratch / f"{i}.npz" for i in range(len(jobs))]
    facts_file = scratch / "facts.json"
    jobs_file = scratch / "jobs.json"
    work = {
        "threads": torch.get_num_threads(),
        "jobs": [{**job, "out": str(out)} for job, out in zip(jobs, outputs, strict=True)],
        "facts": str(facts_file),
    }
    jobs_file.write_text(json.dumps(work), encoding="utf-8")
    offline = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # -P keeps the script's own folder, which is a part of layerscope, out of the search path.
    command = [sys.executable, "-P", str(reload_child.__file__), str(jobs_file)]
    process = subprocess.run(  # noqa: S603 - our own interpreter and file
        command, env={**os.environ, **offline}, capture_output=True, text=True, cwd=scratch
    )
    if process.returncode != 0:
        last = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise ExportError(
            f"the exported folder could not be loaded in a fresh process: {last[:400]}"
        )
    arrays = []
    for out in outputs:
        with np.load(out, allow_pickle=False) as stored:
            arrays.append(dict(stored))
    return arrays, json.loads(facts_file.read_text(encoding="utf-8"))


def _compare(draft: Draft, arrays: dict[str, np.ndarray], versions: dict[str, str]) -> Verification:
    model = draft.model
    readout = draft.readout
    pooled = pooled_vectors(model, draft.ids(), draft.layer, readout, _BATCH)
    captured = finished(pooled, draft.head, draft.unit)
    distances = cosine_distances(captured, arrays["vectors"])
    tolerance = TOLERANCE.get(model.identity["dtype"], HALF_TOLERANCE)
    worst = int(np.argmax(np.where(np.isfinite(distances), distances, np.inf)))
    if not distances[worst] < tolerance:
        raise ExportError(
            f"the exported folder does not give back layer {draft.layer} of {model.name} under "
            f"{readout.name}: the cosine distance of {draft.texts[worst][:50]!r} is "
            f"{distances[worst]:.1e}, more than {tolerance:.0e}."
        )
    norms = np.linalg.norm(captured, axis=1)
    ratios = np.linalg.norm(arrays["vectors"].astype(np.float64), axis=1) / (norms + _SMALLEST)
    if not np.allclose(ratios, 1, atol=max(1e-3, tolerance)):
        raise ExportError(
            "the exported folder's vectors have another length: "
            f"{ratios.min():.4f} to {ratios.max():.4f} times."
        )
    evaluated = tokenize_texts(model, draft.template, draft.texts, draft.max_length)
    return Verification(
        texts=len(draft.texts),
        cut_texts=sum(text.truncated for text in evaluated),
        cosine_distance=float(distances[worst]),
        tolerance=tolerance,
        state_error=_state_error(draft, arrays, tolerance),
        texts_per_second=_texts_per_second(draft),
        versions=versions,
    )


def _state_error(draft: Draft, arrays: dict[str, np.ndarray], tolerance: float) -> float:
    """Return the largest relative difference of a token's state, as plain transformers gives it."""
    worst = 0.0
    for i in range(sum(name.startswith("ids_") for name in arrays)):
        ids = torch.tensor(arrays[f"ids_{i}"])[None].to(draft.model.device)
        states = capture_states(draft.model, draft.layer, draft.readout.final_norm, ids)
        captured = states[0].float().cpu().numpy()
        errors = np.linalg.norm(captured - arrays[f"states_{i}"], axis=1)
        norms = np.maximum(np.linalg.norm(captured, axis=1), _SMALLEST)
        worst = max(worst, float((errors / norms).max()))
    allowed = 1e-3 if tolerance < 1e-4 else 0.1
    if not worst < allowed:
        raise ExportError(
            "AutoModel on the exported folder does not give the captured states: a token differs "
            f"by {worst:.1e} of its length (at most {allowed:.0e})."
        )
    return worst


def _texts_per_second(draft: Draft) -> dict[str, float]:
    """Return texts per second of the whole model and of the blocks in the folder.

    They are timed in turns on one device, because other work then slows both alike.
    """
    model = draft.model
    rows = [ids for ids in draft.ids() if ids][:_TIMED]
    layers = {"original": model.n_blocks, "export": min(draft.route.blocks, model.n_blocks)}
    seconds = dict.fromkeys(layers, 0.0)
    for _ in range(_ROUNDS):
        for name, layer in layers.items():
            start = perf_counter()
            pooled_vectors(model, rows, layer, draft.readout, _BATCH)
            seconds[name] += perf_counter() - start
    return {name: _ROUNDS * len(rows) / duration for name, duration in seconds.items()}


def pooled_vectors(
    model: LoadedModel,
    ids: Sequence[Sequence[int]],
    layer: int,
    readout: Readout,
    batch_size: int | None = None,
) -> np.ndarray:
    """Return the vectors (texts, D) of token ids at one layer, pooled over the whole sequence.

    They are neither centered nor scaled.
    """
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer == layer]
    kind = f"{readout.pooling}/{readout.final_norm}"
    request = EncodeRequest(get_template("plain"), tuple(sites), (kind,), 0, batch_size)
    rows = [list(row) or [model.pad_id] for row in ids]
    tokenized = [TokenizedText(row, (0, len(row)), False) for row in rows]
    return TextEncoder(model, request).run(tokenized).vectors[kind][0]


def finished(vectors: np.ndarray, head: Head | None, unit: bool) -> np.ndarray:
    """Return vectors after the head and scaled to length 1, as the evaluation does both."""
    result = vectors.astype(np.float64) if head is None else head(vectors)
    if unit:
        result /= np.maximum(np.linalg.norm(result, axis=1, keepdims=True), _SMALLEST)
    return result


def cosine_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return 1 − cosine of each pair of rows, exact also for rows that are almost the same.

    It is half the squared distance of their directions.

    >>> cosine_distances(np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])).tolist()
    [1.0]
    """
    directions = []
    for rows in (a.astype(np.float64), b.astype(np.float64)):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        directions.append(rows / np.where(norms > 0, norms, np.nan))
    distances: np.ndarray = 0.5 * ((directions[0] - directions[1]) ** 2).sum(1)
    return distances
