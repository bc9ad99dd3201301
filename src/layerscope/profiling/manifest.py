"""What a finished profile says about itself: conventions, counts, warnings, versions."""

from __future__ import annotations

import platform
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from layerscope.capture.reduce import compute_dtype
from layerscope.metrics import Options
from layerscope.profiling.encode import ProfileTask
from layerscope.profiling.tables import TableBuilder
from layerscope.reading import Plan
from layerscope.spectra import solver_name
from layerscope.version import VERSION


def make_manifest(
    task: ProfileTask, plan: Plan, builder: TableBuilder, facts: dict[str, Any], seconds: dict[str, float]
) -> dict[str, Any]:
    """The manifest of a profile."""
    anatomy, config = task.model.anatomy, task.config
    used = plan.lengths[plan.lengths > 0]
    counts = {
        "prompts": plan.n_prompts,
        "dropped": {**task.items.dropped, **({"no_tokens": plan.no_tokens} if plan.no_tokens else {})},
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
        "model": task.model.identity,
        "corpus": {"name": task.items.name, "fingerprint": task.items.fingerprint, **task.items.source},
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
            "precision": _precision(task.device, config.options),
            "intervals": "95 %: bootstrap over prompts; spectra: 20 folds of prompts left out; DiME: over permutations",
            "metrics": dict(vars(config.options)),
            **({"plugins": plugins} if (plugins := config.as_dict().get("plugins")) else {}),
            "residual_error": facts["residual_error"],
            **task.reader.conventions(config.view_settings),
        },
        "counts": counts,
        "warnings": _warnings(task, plan, builder),
        "environment": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "device": str(task.device),
            "threads": torch.get_num_threads(),
            "engine": facts.get("engine") or {"name": task.engine.name},
            "eigenvalues": solver_name(task.metrics_device),
            **{name: _version(name) for name in ("torch", "numpy", "transformers", "tokenizers", "pandas")},
        },
        "seconds": {**seconds, "resumed_prompts": facts["resumed_prompts"]},
    }


def _warnings(task: ProfileTask, plan: Plan, builder: TableBuilder) -> list[str]:
    kind = task.items.kind
    out = [*builder.warnings, *task.items.warnings(), *task.reader.warnings()]
    cut = int(plan.truncated.sum())
    if cut:
        out.append(f"{cut} of {plan.n_prompts} {kind} were cut to {plan.max_length} tokens.")
    if plan.no_tokens:
        out.append(f"{plan.no_tokens} {kind} were left out: the tokenizer finds no token in them.")
    if task.model.anatomy.final_norm is None and task.config.final_norm != "raw":
        out.append(f"this model has no final norm: final_norm={task.config.final_norm} is the same as raw here.")
    if task.model.identity.get("quantization"):
        out.append(f"the weights were quantized ({task.model.identity['quantization']}) in their source.")
    n, views = plan.n_prompts, task.config.n_views
    if "lidar" in task.config.metrics and n * (views - 1) < task.model.width:
        out.append(
            f"LiDAR: {n} prompts × {views} views span fewer than the {task.model.width} dimensions, so its value "
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
