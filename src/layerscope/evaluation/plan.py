"""What an evaluation is asked to do, and what it says about itself afterwards. The plan is the
run's key."""

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

Texts = Mapping[str, Sequence[str]]
"""The texts of each task."""


TOGETHER = 12_800
"""Small tasks are encoded together up to this number of texts: fewer would go in small chunks."""


@dataclass(frozen=True)
class EvaluationPlan:
    """Which tasks are scored at which sites under which readouts of one model, and how texts become
    vectors."""

    model: LoadedModel
    specs: tuple[TaskSpec, ...]
    readouts: tuple[Readout, ...]
    sites: tuple[Site, ...]
    max_length: int
    seed: int
    unit_length: bool = False
    store_dtype: str = "float32"
    scoring: str = "mteb"

    @property
    def config(self) -> dict[str, Any]:
        """Everything that decides the scores: the run's key is made of it."""
        return {
            "model": model_key(self.model.identity),
            "tasks": [task_config(spec) for spec in self.specs],
            "readouts": [readout.name for readout in self.readouts],
            "sites": [site.name for site in self.sites],
            "max_length": self.max_length,
            "seed": self.seed,
            "unit_length": self.unit_length,
            "layerscope": VERSION,
            "store_dtype": self.store_dtype,
            **({} if self.scoring == "mteb" else {"scoring": self.scoring}),
        }

    def groups(self, texts: Texts) -> list[tuple[str, ...]]:
        """Return the tasks in the groups in which they are encoded and scored: small ones
        together."""
        out: list[tuple[str, ...]] = []
        together = TOGETHER  # texts of the last group
        for name, some in texts.items():
            if together < TOGETHER:
                out[-1] += (name,)
            else:
                out.append((name,))
                together = 0
            together += len(some)
        return out

    def conventions(self) -> dict[str, Any]:
        """The conventions of the scores."""
        return {
            "layer": LAYER,
            **Reading(
                None, self.max_length, self.model.anatomy.final_norm_name
            ).as_conventions(),  # readouts name the norm
            "unit_length": self.unit_length,
            "centering": "the mean over all distinct texts of the task is subtracted",
            "sink": "the token with the largest norm, found per text and layer on states without the final norm",
            "readouts": [readout.name for readout in self.readouts],
            "score": "mteb's main score, 0 to 1",
            "scoring": SCORINGS[self.scoring],
            "intervals": "95 %: bootstrap over the task's items, the same for every layer",
            "tied": "not told from the best by that bootstrap, 95 % for all layers at once",
            "store_dtype": self.store_dtype,
            "seed": self.seed,
        }


def task_config(spec: TaskSpec) -> dict[str, Any]:
    """What of a task decides its scores: whether its data may be downloaded does not."""
    return {
        "name": spec.name,
        "source": spec.source,
        "path": spec.path,
        "sample": spec.sample,
        "seed": spec.seed,
    }


def warnings(
    plan: EvaluationPlan, counts: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What a reader should know before believing the scores."""
    out = []
    for template, cut in counts["truncated"].items():
        if cut:
            out.append(
                f"{cut} of {counts['texts']} texts were cut to {plan.max_length} tokens under template {template!r}."
            )
    for name, fact in facts.items():
        if fact.get("exact") is False:
            out.append(f"{name} is not MTEB's own split: {fact.get('exact_reason')}.")
    return out + plan.model.warnings()


def failures(results: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One line per task and kind of error, however many layers and readouts it failed at."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result["status"] == "failed":
            reasons.setdefault((result["task"], result["reason"].split(":")[0]), []).append(
                result["reason"]
            )
    lines = []
    for (task, _), same in reasons.items():
        more = f" (and {len(same) - 1} more of its layers and readouts)" if len(same) > 1 else ""
        lines.append({"task": task, "reason": same[0] + more})
    return lines
