"""What a finished evaluation says about itself: conventions, warnings, what failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerscope.evaluation.job import EvaluationJob


def conventions(job: EvaluationJob, dtype: str) -> dict[str, Any]:
    """Under which conventions the scores were made."""
    return {
        "layer": "layer k is the state after k blocks; layer 0 is the input of the first block",
        "max_length": job.max_length,
        "unit_length": job.unit,
        "centering": "the mean over all distinct texts of the task is subtracted",
        "sink": "the token with the largest norm, found per text and layer on states without the final norm",
        "readouts": [readout.name for readout in job.readouts],
        "score": "mteb's main score, 0 to 1",
        "intervals": "95 %: bootstrap over the task's items, the same for every layer; tied: not told from the best",
        "store_dtype": dtype,
        "seed": job.seed,
    }


def warnings(job: EvaluationJob, counts: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """What a reader should know before believing the numbers."""
    out = []
    for template, cut in counts["truncated"].items():
        if cut:
            out.append(f"{cut} of {counts['texts']} texts were cut to {job.max_length} tokens under template {template!r}.")
    if job.screened:
        out.append(
            f"the store's budget does not hold all {job.screened['of']} readouts of all texts: they were screened on a part "
            f"of each task, and the best {len(job.screened['kept'])} were scored in full. Raise --store-budget to score all."
        )
    for name, fact in facts.items():
        if fact.get("exact") is False:
            out.append(f"{name} is not MTEB's own split: {fact.get('exact_reason')}.")
    if job.model.identity.get("quantization"):
        out.append(f"the weights were quantized ({job.model.identity['quantization']}) in their source.")
    return out


def failures(results: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One line per task and kind of error, however many layers and readouts it failed at."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result["status"] == "failed":
            found.setdefault((result["task"], result["reason"].split(":")[0]), []).append(result["reason"])
    lines = []
    for (task, _), reasons in found.items():
        more = f" (and {len(reasons) - 1} more of its layers and readouts)" if len(reasons) > 1 else ""
        lines.append({"task": task, "reason": reasons[0] + more})
    return lines
