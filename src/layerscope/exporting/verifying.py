"""Verification: an exported folder is loaded in a fresh process, and its vectors are compared with
those that layerscope captured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layerscope.capture import Batch, expand_sites
from layerscope.capture.pooling import Pooler
from layerscope.core.heads import Head
from layerscope.core.readout import Readout
from layerscope.errors import ExportError
from layerscope.exporting import reload_child
from layerscope.exporting.cutting import capture_states
from layerscope.exporting.draft import Draft
from layerscope.extras import missing
from layerscope.forward import BatchRunner
from layerscope.models import LoadedModel
from layerscope.vectors.tokenize import tokenize_texts

__all__ = ["cosine_distances", "pooled_vectors"]

TOLERANCE = {"float64": 1e-5, "float32": 1e-5}
HALF_TOLERANCE = 5e-3  # half precision rounds every sum, and a batch's shape changes their order
_PROBES = 5
_BATCH = 4  # a few texts of very different lengths: a large batch would be mostly padding


@dataclass(frozen=True)
class Verification:
    """The largest differences between the reloaded folder and the captured vectors: over all texts,
    and over the tokens of a few."""

    texts: int
    cut_texts: int
    cosine_distance: float
    tolerance: float
    state_error: float
    cut_distance: float | None
    versions: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def require_sentence_transformers() -> None:
    """Raise, before any work, if the extra is missing."""
    from importlib.util import find_spec

    if find_spec("sentence_transformers") is None:
        raise missing("export")


def verify(drafts: Sequence[Draft]) -> list[Verification]:
    """Reload all drafts in one fresh process and compare them with what was captured; raise an
    `ExportError` where they differ.

    Of a draft with two sides, the side that differs more is returned.
    """
    with tempfile.TemporaryDirectory(prefix="layerscope-verify-") as scratch:
        sides = [side for draft in drafts for side in draft.by_side()]
        arrays, versions = reload([side.as_job(_PROBES) for side in sides], Path(scratch))
        if versions.pop("layerscope_loaded"):
            raise ExportError(
                "the fresh process loaded layerscope, so the folder was not shown to work without it."
            )
        checked = [_compare(side, held, versions) for side, held in zip(sides, arrays, strict=True)]
    worst = []
    for draft in drafts:
        count = len(draft.by_side())
        worst.append(max(checked[:count], key=lambda check: check.cosine_distance))
        checked = checked[count:]
    return worst


def reload(
    jobs: Sequence[dict[str, Any]], scratch: Path
) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
    """Return what folders give in a process of their own, offline, and the versions there."""
    for i, job in enumerate(jobs):
        job["out"] = str(scratch / f"{i}.npz")
    facts_file, jobs_file = scratch / "facts.json", scratch / "jobs.json"
    work = {"threads": torch.get_num_threads(), "jobs": list(jobs), "facts": str(facts_file)}
    jobs_file.write_text(json.dumps(work), encoding="utf-8")
    offline = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # -P: the script's own folder, which is a part of layerscope, stays out of the search path
    command = [sys.executable, "-P", str(reload_child.__file__), str(jobs_file)]
    ended = subprocess.run(  # noqa: S603 - our own interpreter and file
        command, env={**os.environ, **offline}, capture_output=True, text=True, cwd=scratch
    )
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise ExportError(
            f"the exported folder could not be loaded in a fresh process: {last[:400]}"
        )
    reloaded = []
    for job in jobs:
        with np.load(str(job["out"]), allow_pickle=False) as stored:
            reloaded.append({name: stored[name] for name in stored.files})
    return reloaded, json.loads(facts_file.read_text(encoding="utf-8"))


def _compare(draft: Draft, arrays: dict[str, np.ndarray], versions: dict[str, str]) -> Verification:
    model, readout = draft.model, draft.readout
    ids = draft.ids()
    pooled = pooled_vectors(model, ids, draft.layer, readout, _BATCH)
    captured = finished(pooled, draft.head, draft.unit)
    distances = cosine_distances(captured, arrays["vectors"])
    tolerance = TOLERANCE.get(model.identity["dtype"], HALF_TOLERANCE)
    worst = int(np.argmax(np.where(np.isfinite(distances), distances, np.inf)))
    if not distances[worst] < tolerance:
        raise ExportError(
            f"the exported folder does not give back layer {draft.layer} of {model.name} under {readout.name}: the cosine "
            f"distance of {draft.texts[worst][:50]!r} is {distances[worst]:.1e}, more than {tolerance:.0e}."
        )
    lengths = np.linalg.norm(arrays["vectors"].astype(np.float64), axis=1) / np.maximum(
        np.linalg.norm(captured, axis=1), 1e-30
    )
    if not np.allclose(lengths, 1, atol=max(1e-3, tolerance)):
        raise ExportError(
            f"the exported folder's vectors have another length: {lengths.min():.4f} to {lengths.max():.4f} times."
        )
    evaluated = tokenize_texts(model, draft.template, draft.texts, draft.max_length)
    cut = [i for i, e in enumerate(evaluated) if e.truncated]
    return Verification(
        texts=len(draft.texts),
        cut_texts=len(cut),
        cosine_distance=float(distances[worst]),
        tolerance=tolerance,
        state_error=_states(draft, arrays, tolerance),
        cut_distance=_cut_distance(draft, [evaluated[i].ids for i in cut], captured[cut]),
        versions=versions,
    )


def _states(draft: Draft, arrays: dict[str, np.ndarray], tolerance: float) -> float:
    """Return the largest relative difference of a token's state, as plain transformers gives it."""
    worst = 0.0
    for i in range(sum(name.startswith("ids_") for name in arrays)):
        ids = torch.tensor(arrays[f"ids_{i}"])[None].to(draft.model.device)
        states = capture_states(draft.model, draft.layer, draft.readout.final_norm, ids)
        captured = states[0].float().cpu().numpy()
        lengths = np.maximum(np.linalg.norm(captured, axis=1), 1e-30)
        errors = np.linalg.norm(captured - arrays[f"states_{i}"], axis=1) / lengths
        worst = max(worst, float(errors.max()))
    loose = 1e-3 if tolerance < 1e-4 else 0.1
    if not worst < loose:
        raise ExportError(
            f"AutoModel on the exported folder does not give the captured states: a token differs by {worst:.1e} of its length "
            f"(at most {loose:.0e})."
        )
    return worst


def _cut_distance(draft: Draft, ids: list[list[int]], vectors: np.ndarray) -> float | None:
    """Return the largest distance of cut texts from the evaluation's vectors, which may cut a
    template one token elsewhere."""
    if not ids:
        return None
    pooled = pooled_vectors(draft.model, ids, draft.layer, draft.readout, _BATCH)
    evaluated = finished(pooled, draft.head, draft.unit)
    return float(np.nanmax(cosine_distances(evaluated, vectors)))


def pooled_vectors(
    model: LoadedModel,
    ids: Sequence[Sequence[int]],
    layer: int,
    readout: Readout,
    batch_size: int | None = None,
) -> np.ndarray:
    """The vectors (texts, D) of token ids at one layer, pooled over the whole sequence; not
    centered, not scaled."""
    site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
    kind = f"{readout.pooling}/{readout.final_norm}"
    rows = [list(row) or [model.pad_id] for row in ids]
    out = np.empty((len(rows), model.width), dtype=np.float32)
    with Pooler(model.anatomy, [site], [kind]) as pooler:

        def keep(items: list[int], batch: Batch) -> None:
            pooled, _ = pooler.run(batch, [(0, len(rows[i])) for i in items], model.run)
            out[items] = pooled[kind][0].cpu()

        BatchRunner(model, batch_size).run(rows, keep)
    return out


def finished(vectors: np.ndarray, head: Head | None, unit: bool) -> np.ndarray:
    """Vectors centered or through a head, then scaled to length 1, as the evaluation does both."""
    out = vectors.astype(np.float64) if head is None else head(vectors)
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-30) if unit else out


def cosine_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """1 − cosine of each pair of rows, exact for rows that are almost the same (half the squared
    distance of their directions).

    >>> cosine_distances(np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])).tolist()
    [1.0]
    """
    directions = []
    for rows in (a.astype(np.float64), b.astype(np.float64)):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        directions.append(rows / np.where(lengths > 0, lengths, np.nan))
    return 0.5 * ((directions[0] - directions[1]) ** 2).sum(1)
