"""Verification: an exported folder is loaded in a fresh process, and its vectors are compared with
those that layerscope captured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from layerscope.capture import expand_sites
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.errors import ExportError
from layerscope.exporting import reload_child
from layerscope.exporting.draft import Draft
from layerscope.models import LoadedModel
from layerscope.vectors.encoder import EncodeRequest, TextEncoder, TokenizedText, tokenize_texts

__all__ = ["cosine_distances", "pooled_vectors"]

TOLERANCE = {"float64": 1e-5, "float32": 1e-5}
HALF_TOLERANCE = 5e-3
"""Half precision rounds every sum, and a batch's shape changes their order."""
_BATCH = 4  # the texts differ much in length: a large batch would be mostly padding
_TIMED = 8
_ROUNDS = 2
_SMALLEST = 1e-30


@dataclass(frozen=True)
class Verification:
    """The largest difference between the reloaded folder and what was captured.

    `texts_per_second` is that of the whole model (`original`) and of the blocks in the folder
    (`export`).
    """

    texts: int
    cut_texts: int
    cosine_distance: float
    tolerance: float
    texts_per_second: dict[str, float]
    versions: dict[str, str]


def verify(draft: Draft) -> Verification:
    """Reload a folder in a fresh process and compare it with what was captured.

    Raises an `ExportError` if they differ. Of two sides, the one that differs more is returned.
    """
    sides = draft.by_side()
    with tempfile.TemporaryDirectory(prefix="layerscope-verify-") as scratch:
        jobs = [
            {
                "folder": str(side.folder.resolve()),  # the fresh process works elsewhere
                "texts": list(side.texts),
                "side": None if side.side is None else side.side.name,
            }
            for side in sides
        ]
        vectors, versions = reload(jobs, Path(scratch))
    pairs = zip(sides, vectors, strict=True)
    checks = [_compare(side, reloaded, versions) for side, reloaded in pairs]
    return max(checks, key=lambda check: check.cosine_distance)


def reload(
    jobs: Sequence[Mapping[str, Any]], scratch: Path
) -> tuple[list[np.ndarray], dict[str, str]]:
    """Return the vectors of each job from an offline process of its own, and the versions there."""
    work = {
        "threads": torch.get_num_threads(),
        "jobs": [{**job, "out": str(scratch / f"{i}.npy")} for i, job in enumerate(jobs)],
        "facts": str(scratch / "facts.json"),
    }
    jobs_file = scratch / "jobs.json"
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
    vectors = [np.load(scratch / f"{i}.npy", allow_pickle=False) for i in range(len(jobs))]
    versions = json.loads((scratch / "facts.json").read_text(encoding="utf-8"))
    if versions.pop("layerscope_loaded"):
        raise ExportError("the fresh process loaded layerscope, so the check says nothing.")
    return vectors, versions


def _compare(draft: Draft, vectors: np.ndarray, versions: dict[str, str]) -> Verification:
    model = draft.model
    pooled = pooled_vectors(model, draft.ids(), draft.layer, draft.readout, _BATCH)
    captured = pooled.astype(np.float64) if draft.head is None else draft.head(pooled)
    if draft.unit:
        captured /= np.maximum(np.linalg.norm(captured, axis=1, keepdims=True), _SMALLEST)
    reloaded = vectors.astype(np.float64)
    distances = cosine_distances(captured, reloaded)
    tolerance = TOLERANCE.get(model.identity["dtype"], HALF_TOLERANCE)
    worst = int(np.argmax(np.where(np.isfinite(distances), distances, np.inf)))
    ratios = np.linalg.norm(reloaded, axis=1) / (np.linalg.norm(captured, axis=1) + _SMALLEST)
    has_length = np.allclose(ratios, 1, atol=max(1e-3, tolerance))
    if not (distances[worst] < tolerance and has_length):
        raise ExportError(
            f"the exported folder does not give back layer {draft.layer} of {model.name} under "
            f"{draft.readout.name}: the cosine distance of {draft.texts[worst][:50]!r} is "
            f"{distances[worst]:.1e} (at most {tolerance:.0e}), and lengths are "
            f"{ratios.min():.4f} to {ratios.max():.4f} times what they should be."
        )
    evaluated = tokenize_texts(model, draft.template, list(draft.texts), draft.max_length)
    return Verification(
        texts=len(draft.texts),
        cut_texts=sum(text.truncated for text in evaluated),
        cosine_distance=float(distances[worst]),
        tolerance=tolerance,
        texts_per_second=_texts_per_second(draft),
        versions=versions,
    )


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
