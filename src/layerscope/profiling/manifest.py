"""What a finished profile says about itself: conventions, counts, warnings, versions."""

from __future__ import annotations

import platform
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from layerscope.capture.reduce import compute_dtype
from layerscope.metrics import Options
from layerscope.profiling.images import image_conventions, image_warnings
from layerscope.profiling.plan import Plan
from layerscope.profiling.tables import TableBuilder
from layerscope.spectra import solver_name
from layerscope.version import VERSION

if TYPE_CHECKING:
    from layerscope.profiling.job import Job


def make_manifest(
    job: Job, plan: Plan, builder: TableBuilder, facts: dict[str, Any], seconds: dict[str, float]
) -> dict[str, Any]:
    """The manifest of a profile."""
    anatomy, config = job.model.anatomy, job.config
    used = plan.lengths[plan.lengths > 0]
    counts = {
        "prompts": plan.n_prompts,
        "dropped": {**job.corpus.dropped, **({"no_tokens": plan.no_tokens} if plan.no_tokens else {})},
        "truncated": int(plan.truncated.sum()),
        "tokens": {"shortest": int(used.min()), "median": float(np.median(used)), "longest": int(used.max())},
        "undefined": builder.undefined,
        "flat_differences": builder.flat,
        "empty_views": facts["empty_views"],
    }
    return {
        "kind": "profile",
        "status": "complete",
        "layerscope": VERSION,
        "finished": now(),
        "model": job.model.identity,
        "corpus": {"name": job.corpus.name, "fingerprint": job.corpus.fingerprint, **job.corpus.source},
        "conventions": {
            "layer": "layer k is the state after k blocks; layer 0 is the input of the first block",
            "final_norm": config.final_norm,
            "final_norm_module": None if anatomy.final_norm is None else type(anatomy.final_norm).__name__,
            "pooling": "mean over all tokens the tokenizer gives, special tokens included",
            "sink": "the token with the largest norm, found per prompt and site on states without the final norm",
            "padding": "right, masked out of every number",
            "sites": list(config.sites),
            "max_length": plan.max_length,
            "views": config.n_views,
            "augmenter": config.augmenter if config.n_views else None,
            "seed": config.seed,
            "preset": config.preset,
            "precision": _precision(job.device, config.options),
            "intervals": "95 %: bootstrap over prompts; spectra: 20 folds of prompts left out; DiME: over permutations",
            "metrics": dict(vars(config.options)),
            **({"plugins": plugins} if (plugins := config.as_dict().get("plugins")) else {}),
            "residual_error": facts["residual_error"],
            **image_conventions(job.model, config),
        },
        "counts": counts,
        "warnings": _warnings(job, plan, builder),
        "environment": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "device": str(job.device),
            "threads": torch.get_num_threads(),
            "engine": facts.get("engine") or {"name": job.engine.name},
            "eigenvalues": solver_name(job.metrics_device),
            **{name: _version(name) for name in ("torch", "numpy", "transformers", "tokenizers", "pandas")},
        },
        "seconds": {**seconds, "resumed_prompts": facts["resumed_prompts"]},
    }


def _warnings(job: Job, plan: Plan, builder: TableBuilder) -> list[str]:
    out = [*builder.warnings, *image_warnings(job.model, job.corpus, plan.n_prompts)]
    cut = int(plan.truncated.sum())
    if cut:
        out.append(f"{cut} of {plan.n_prompts} texts were cut to {plan.max_length} tokens.")
    if job.model.max_length is not None and job.config.max_length > job.model.max_length:
        out.append(f"max_length {job.config.max_length} is more than the model's context: {job.model.max_length} was used.")
    if plan.no_tokens:
        out.append(f"{plan.no_tokens} texts were left out: the tokenizer finds no token in them.")
    if job.corpus.dropped and plan.images is None:
        what = ", ".join(f"{n} {why}" for why, n in job.corpus.dropped.items())
        out.append(f"texts left out of the corpus: {what}.")
    if job.corpus.source.get("duplicates"):
        what = "texts" if plan.images is None else "images"
        out.append(
            f"{job.corpus.source['duplicates']} {what} are duplicates: they count as prompts of their own, "
            "and as negatives of each other in InfoNCE."
        )
    if job.model.anatomy.final_norm is None and job.config.final_norm != "raw":
        out.append(f"this model has no final norm: final_norm={job.config.final_norm} is the same as raw here.")
    if job.model.identity.get("quantisation"):
        out.append(f"the weights were quantised ({job.model.identity['quantisation']}) in their source.")
    n, views = plan.n_prompts, job.config.n_views
    if "lidar" in job.config.metrics and n * (views - 1) < job.model.width:
        out.append(
            f"LiDAR: {n} prompts × {views} views span fewer than the {job.model.width} dimensions, so its value "
            "depends on δ. Use more prompts or views."
        )
    for metric, sites in builder.undefined.items():
        out.append(f"{metric} is undefined for up to {max(sites.values())} of {n} prompts; they are left out of it.")
    return out


def _precision(device: torch.device, options: Options) -> str:
    reduced = "reductions and eigenvalues in float64"
    if compute_dtype(device, options) == torch.float32:
        reduced = (
            "means in float64; Gram matrices of tokens, DiME's and LiDAR's eigenvalues and those of folds left out in float32; "
            "other spectra in float64"
        )
    return f"states as the model gives them; {reduced}; pooled vectors in float32"


@cache  # looking it up on the disk takes a while
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def now() -> str:
    """The time, for a manifest."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
