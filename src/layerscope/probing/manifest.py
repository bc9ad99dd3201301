"""What a run of probes says of itself: every convention that its numbers depend on."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from layerscope.probing.fitting import head_count, pooling_of, probes
from layerscope.probing.neighbours import NEIGHBOURS
from layerscope.version import VERSION

if TYPE_CHECKING:
    import pandas as pd

    from layerscope.probing.job import ProbeJob


def make_manifest(job: ProbeJob, table: pd.DataFrame, seconds: dict[str, float]) -> dict[str, Any]:
    """Model, data, conventions, counts, warnings, environment and times."""
    examples, anatomy, recipe = job.examples, job.model.anatomy, job.recipe
    return {
        "status": "complete",
        "layerscope": VERSION,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": job.model.identity,
        "data": {
            "name": examples.name,
            "kind": examples.kind,
            "fingerprint": examples.fingerprint,
            "classes": list(examples.classes),
            "own_parts": sorted(examples.parts),
            **examples.facts,
        },
        "conventions": {
            "layer": "layer k is the state after k blocks; layer 0 is the input of the first block",
            "final_norm": job.final_norm,
            "final_norm_module": None if anatomy.final_norm is None else type(anatomy.final_norm).__name__,
            "probes": {kind: probes()[kind] for kind in job.kinds},
            "reads": {kind: pooling_of(kind) for kind in job.kinds},
            "class_token": job.source.has_class_token,
            "attention_heads": head_count(job.model),
            "neighbours": NEIGHBOURS,
            "standardised": "per layer and feature with the training part's mean and variance over all tokens read, no weights",
            "training": {
                **vars(recipe),
                "optimiser": "AdamW (0.9, 0.999)",
                "schedule": "warm-up over a tenth, then half a cosine",
            },
            "start": "every layer and learning rate begins at the same values and sees the same batches",
            "chosen_on": "the validation part: learning rate and epoch by accuracy, then loss; the test part is read at the end",
            "intervals": "95 %: Wilson for accuracies; gains: 1000 bootstrap draws of test items, the same for every layer",
            "chosen_layer": "best on the validation part; its gain over the last layer is judged on the test part",
            "tied_best": "not told from the best layer by that bootstrap",
            "kept": {**job.plan.facts(), "budget": job.budget},
            "seed": recipe.seed,
            **{f"reading_{key}": value for key, value in job.source.facts().items()},
        },
        "counts": {**job.split.sizes(), "classes": len(examples.classes)},
        "warnings": _warnings(job, table),
        "environment": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "device": str(job.model.device),
            "threads": torch.get_num_threads(),
            **{name: _version(name) for name in ("torch", "numpy", "transformers", "pandas")},
        },
        "seconds": seconds,
    }


def _warnings(job: ProbeJob, table: pd.DataFrame) -> list[str]:
    out = []
    labels, split = job.examples.labels, job.split
    unseen = sorted(set(np.unique(labels[split.test])) - set(np.unique(labels[split.train])))
    if unseen:
        names = ", ".join(job.examples.classes[i] for i in unseen[:3])
        out.append(f"{len(unseen)} classes of the test part are not in the training part ({names}): no probe can name them.")
    if len(split.validation) < 50:
        out.append(f"the validation part has {len(split.validation)} items only: learning rate and epoch are chosen on few.")
    trained = table[table["learning_rate"].notna() & (table["metric"] == "top1")]
    rates = job.recipe.learning_rates
    if len(rates) > 2:
        edge = trained.loc[trained["learning_rate"] == max(rates), "layer"]
        if len(edge) > len(trained) / 2:
            out.append(f"most layers chose the largest learning rate, {max(rates):g}: larger ones may do better.")
    late = trained[(trained["epoch"] == job.recipe.epochs) & (trained["epochs"] == job.recipe.epochs)]
    if len(late) > len(trained) / 2:
        out.append(f"most layers were best in the last of {job.recipe.epochs} epochs: more may do better.")
    for kind, how in job.plan.how.items():
        if kind == "tokens" and how == "none":
            out.append("the states were computed anew in every epoch: they do not fit the budget.")
        elif kind == "tokens" and how == "float16":
            out.append("the states were kept in half precision (scaled per layer and feature) to fit the budget.")
    for kind, count in job.examples.facts.get("dropped", {}).items():
        out.append(f"{count} items were left out: {kind}.")
    if job.examples.facts.get("contradicting_texts"):
        out.append(f"{job.examples.facts['contradicting_texts']} texts have contradicting labels and were left out.")
    if job.source.facts().get("truncated"):
        out.append(f"{job.source.facts()['truncated']} texts were cut to {job.source.facts()['max_length']} tokens.")
    if job.model.anatomy.final_norm is None and job.final_norm != "raw":
        out.append(f"this model has no final norm: final_norm={job.final_norm} is the same as raw here.")
    return out


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
