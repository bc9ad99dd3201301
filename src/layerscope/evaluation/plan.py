"""What an evaluation is asked to do, and what it says about itself afterwards. The plan is the
run's key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerscope.capture import Site
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.formatting import describe_size
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout, kinds_of
from layerscope.errors import LayerscopeError
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
class Turn:
    """Tasks and sites that are encoded and then scored, and the bytes of their vectors."""

    tasks: tuple[str, ...]
    sites: tuple[Site, ...]
    bytes: int
    own: bool = False
    """Whether the vectors have a folder of their own, which goes after the turn: the store does
    not hold those of all turns."""

    def alone(self) -> list[Turn]:
        """A turn for each of the tasks."""
        return [replace(self, tasks=(name,)) for name in self.tasks]


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

    def by_template(self) -> dict[str, list[Readout]]:
        """The readouts of each template: one pass over the texts gives all of them."""
        grouped: dict[str, list[Readout]] = {}
        for readout in self.readouts:
            grouped.setdefault(readout.template, []).append(readout)
        return grouped

    def turns(self, texts: Texts, store_size: int | None) -> list[Turn]:
        """The turns in which the tasks are encoded and scored, small ones together.

        Where the store cannot hold all vectors, those of every turn fit, and a task that does not
        fit alone is encoded a few layers at a time. What does not fit even so is refused.
        """
        kinds = sum(len(kinds_of(readouts)) for readouts in self.by_template().values())
        each = (
            kinds * self.model.width * (2 if self.store_dtype == "float16" else 4)
        )  # bytes of a text at one site
        count = len({text for some in texts.values() for text in some})
        whole = store_size is None or count * each * len(self.sites) <= store_size
        out: list[Turn] = []
        together = 0  # texts of the last turn
        for name, some in texts.items():
            need = len(some) * each
            fit = len(self.sites)
            if not whole and store_size is not None:
                fit = min(store_size // max(1, need), fit)
            if fit == 0:
                raise LayerscopeError(
                    f"{len(self.readouts)} readouts of {len(some)} texts take {describe_size(need)} at one layer, and the "
                    f"embedding store may have {describe_size(store_size or 0)}. Raise store_size=, store float16 (store_dtype=), or "
                    "give fewer readouts=: sample= finds the best on a part of each task."
                )
            size = need * len(self.sites)
            joins = bool(out) and fit == len(self.sites) == len(out[-1].sites)
            if joins and together < TOGETHER and (whole or out[-1].bytes + size <= store_size):  # type: ignore[operator]
                last = out[-1]
                out[-1] = Turn((*last.tasks, name), self.sites, last.bytes + size, not whole)
                together += len(some)
                continue
            parts = [self.sites[i : i + fit] for i in range(0, len(self.sites), fit)]
            out += [Turn((name,), sites, need * len(sites), not whole) for sites in parts]
            together = len(some)
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
    identity = plan.model.identity
    if quantization := identity.get("quantization"):
        out.append(f"the weights were quantized ({quantization}) in their source.")
    return out


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
