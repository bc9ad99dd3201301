"""What an evaluation is asked to do, and what it says about itself afterwards. The plan is the
run's key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerscope.capture import Site
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.formatting import describe_size
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout, kinds_of
from layerscope.errors import LayerscopeError
from layerscope.evaluation.tasks import TaskSpec
from layerscope.maps import map_key
from layerscope.models import LoadedModel
from layerscope.version import VERSION

SCORINGS = {
    "mteb": "mteb's own code",
    "device": "layerscope's batched code, with mteb's draws, seeds and objectives",
}

Texts = Mapping[str, Sequence[str]]
"""The texts of each task."""


@dataclass(frozen=True)
class Turn:
    """Tasks and sites whose vectors are in the store at the same time, and the bytes that they
    take."""

    tasks: tuple[str, ...]
    sites: tuple[Site, ...]
    bytes: int


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
    texts: bool = True  # on the map
    layout: str = "pca"

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
            **({"map": key} if (key := map_key(self.texts, self.layout)) else {}),
        }

    def by_template(self) -> dict[str, list[Readout]]:
        """The readouts of each template: one pass over the texts gives all of them."""
        grouped: dict[str, list[Readout]] = {}
        for readout in self.readouts:
            grouped.setdefault(readout.template, []).append(readout)
        return grouped

    def turns(self, texts: Texts, store_size: int | None, first: Sequence[str] = ()) -> list[Turn]:
        """How the tasks go through a store of limited size: all at once if they fit, else in turns:
        `first`, then the largest.

        A task that does not fit alone is read a few layers at a time. What does not fit even so is
        refused.
        """
        kinds = sum(len(kinds_of(readouts)) for readouts in self.by_template().values())
        each = (
            kinds * self.model.width * (2 if self.store_dtype == "float16" else 4)
        )  # bytes of a text at one site
        count = len({text for some in texts.values() for text in some})
        names = sorted(texts, key=lambda name: (name not in first, -len(texts[name])))
        if store_size is None or count * each * len(self.sites) <= store_size:
            return [Turn(tuple(texts), self.sites, count * each * len(self.sites))]
        out: list[Turn] = []
        for name in names:
            need = len(texts[name]) * each
            fit = min(store_size // max(1, need), len(self.sites))
            if fit == 0:
                raise LayerscopeError(
                    f"{len(self.readouts)} readouts of {len(texts[name])} texts take {describe_size(need)} at one layer, and the "
                    f"embedding store may have {describe_size(store_size)}. Raise store_size=, store float16 (store_dtype=), or "
                    "give fewer readouts=: sample= finds the best on a part of each task."
                )
            whole = need * len(self.sites)
            alike = (
                bool(out)
                and fit == len(self.sites) == len(out[-1].sites)
                and (name in first) == (out[-1].tasks[0] in first)
            )
            if alike and out[-1].bytes + whole <= store_size:
                out[-1] = Turn((*out[-1].tasks, name), self.sites, out[-1].bytes + whole)
            else:
                parts = [self.sites[i : i + fit] for i in range(0, len(self.sites), fit)]
                out += [Turn((name,), sites, need * len(sites)) for sites in parts]
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
        "limit": spec.sample,
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
    if quantization := identity.get("quantization", identity.get("quantisation")):
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
