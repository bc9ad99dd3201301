"""The request of an evaluation, which is the run's key, and what the manifest tells about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerscope.capture import Site
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout
from layerscope.evaluation.tasks import TaskSpec
from layerscope.models import LoadedModel
from layerscope.version import VERSION

SCORINGS = {
    "mteb": "mteb's own code",
    "device": "layerscope's batched code, with mteb's draws, seeds and objectives",
}


@dataclass(frozen=True)
class EvaluationRequest:
    """The tasks, sites and readouts of one model that are scored, and how texts become vectors."""

    model: LoadedModel
    specs: tuple[TaskSpec, ...]
    readouts: tuple[Readout, ...]
    sites: tuple[Site, ...]
    max_length: int
    seed: int
    scoring: str = "mteb"

    @property
    def unit_length(self) -> bool:
        """Return whether vectors are scaled to length 1, as the model's own pipeline does."""
        return bool(self.model.identity.get("normalizes"))

    @property
    def config(self) -> dict[str, Any]:
        """Return everything that decides the scores: the run's key is made of it."""
        return {
            "model": model_key(self.model.identity),
            "tasks": [spec.config for spec in self.specs],
            "readouts": [readout.name for readout in self.readouts],
            "sites": [site.name for site in self.sites],
            "max_length": self.max_length,
            "seed": self.seed,
            "unit_length": self.unit_length,
            "layerscope": VERSION,
            "scoring": self.scoring,
        }

    def conventions(self) -> dict[str, Any]:
        """Return the conventions of the scores."""
        # readouts name the norm
        reading = Reading(None, self.max_length, self.model.anatomy.final_norm_name)
        return {
            "layer": LAYER,
            **reading.as_conventions(),
            "unit_length": self.unit_length,
            "centering": "the mean over all distinct texts of the task is subtracted",
            "sink": "the token with the largest norm, found per text and layer on states without the final norm",
            "readouts": [readout.name for readout in self.readouts],
            "score": "mteb's main score, 0 to 1",
            "scoring": SCORINGS[self.scoring],
            "intervals": "95 %: bootstrap over the task's items, the same for every layer",
            "tied": "not told from the best by that bootstrap, 95 % for all layers at once",
            "seed": self.seed,
        }


def warnings_of(
    request: EvaluationRequest, counts: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return what a reader should know before believing the scores."""
    warnings = [
        f"{cut} of {counts['texts']} texts were cut to {request.max_length} tokens under template {template!r}."
        for template, cut in counts["truncated"].items()
        if cut
    ]
    warnings += [
        f"{name} is not MTEB's own split: {fact.get('exact_reason')}."
        for name, fact in facts.items()
        if fact.get("exact") is False
    ]
    return warnings + request.model.warnings()


def failures_of(results: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return one line per task and kind of error, however many layers and readouts it failed at."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result["status"] == "failed":
            kind = result["reason"].split(":")[0]
            reasons.setdefault((result["task"], kind), []).append(result["reason"])
    lines = []
    for (task, _), alike in reasons.items():
        others = f" (and {len(alike) - 1} more of its layers and readouts)" if alike[1:] else ""
        lines.append({"task": task, "reason": alike[0] + others})
    return lines
