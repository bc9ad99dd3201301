"""What an evaluation is asked to do, and what it says about itself afterwards.

The plan is the run's key: it never changes once it is made. Where the embedding store cannot hold all of its readouts, they are
screened on a part of each task, and the best are scored in full: that is a result, written to the manifest, and the plan of the
full run differs in nothing but its readouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from layerscope.capture import Site, expand_sites
from layerscope.core.conventions import LAYER, Reading
from layerscope.core.identity import model_key
from layerscope.core.readout import READOUT_COLUMNS, Readout, kinds_of
from layerscope.core.sites import pick_layers, site_of
from layerscope.evaluation.tasks import TaskSpec
from layerscope.models import LoadedModel
from layerscope.version import VERSION

# When all readouts of all texts would take more than this share of the store's budget, they are screened on a part first.
_SCREEN_ABOVE = 0.9
_SCREEN_SHARE = 0.3
_SCREEN_LEAST = 100
_SCREEN_KEEP = 6

Texts = Mapping[str, Sequence[str]]
"""The texts of each task."""


@dataclass(frozen=True)
class EvaluationPlan:
    """Which tasks are scored at which sites under which readouts of one model, and how texts become vectors."""

    model: LoadedModel
    specs: tuple[TaskSpec, ...]
    readouts: tuple[Readout, ...]
    sites: tuple[Site, ...]
    max_length: int
    seed: int
    unit_length: bool = False
    store_dtype: str = "float32"

    @classmethod
    def make(
        cls,
        model: LoadedModel,
        specs: Sequence[TaskSpec],
        readouts: Sequence[Readout],
        layers: Sequence[int] | None,
        max_length: int,
        **settings: Any,
    ) -> EvaluationPlan:
        """A plan for a loaded model: its layers are looked up, and its own limit of tokens counts."""
        length = max_length if model.max_length is None else min(max_length, model.max_length)
        sites = expand_sites([site_of(k) for k in pick_layers(layers, model.n_blocks, model.name)], model.anatomy)
        return cls(model, tuple(specs), tuple(readouts), tuple(sites), length, **settings)

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
        }

    def by_template(self) -> dict[str, list[Readout]]:
        """The readouts of each template: one pass over the texts gives all of them."""
        grouped: dict[str, list[Readout]] = {}
        for readout in self.readouts:
            grouped.setdefault(readout.template, []).append(readout)
        return grouped

    def bytes(self, texts: Texts) -> int:
        """What the store holds for these texts under all readouts."""
        kinds = sum(len(kinds_of(readouts)) for readouts in self.by_template().values())
        return _distinct(texts) * kinds * len(self.sites) * self.model.width * (2 if self.store_dtype == "float16" else 4)

    def conventions(self) -> dict[str, Any]:
        """The conventions of the scores."""
        return {
            "layer": LAYER,
            **Reading(None, self.max_length, self.model.anatomy.final_norm_name).as_conventions(),  # readouts name the norm
            "unit_length": self.unit_length,
            "centering": "the mean over all distinct texts of the task is subtracted",
            "sink": "the token with the largest norm, found per text and layer on states without the final norm",
            "readouts": [readout.name for readout in self.readouts],
            "score": "mteb's main score, 0 to 1",
            "intervals": "95 %: bootstrap over the task's items, the same for every layer",
            "tied": "not told from the best by that bootstrap, 95 % for all layers at once",
            "store_dtype": self.store_dtype,
            "seed": self.seed,
        }


def task_config(spec: TaskSpec) -> dict[str, Any]:
    """What of a task decides its scores: whether its data may be downloaded does not.

    The sample is called `limit` there, as in the folders of earlier versions: they resume.
    """
    return {"name": spec.name, "source": spec.source, "path": spec.path, "limit": spec.sample, "seed": spec.seed}


def _distinct(texts: Texts) -> int:
    return len({text for some in texts.values() for text in some})


def needs_screening(plan: EvaluationPlan, texts: Texts, budget: int | None) -> bool:
    """Whether the store's budget cannot hold all readouts of all texts."""
    return budget is not None and plan.bytes(texts) > _SCREEN_ABOVE * budget


def screening_plan(plan: EvaluationPlan, texts: Texts, items: Mapping[str, int], budget: int) -> EvaluationPlan:
    """The same readouts on a part of each task that fits the budget. `items` counts the items of the tasks that could be read."""
    share = _SCREEN_SHARE * budget / plan.bytes(texts)
    limits = {task: min(count, max(_SCREEN_LEAST, int(share * count))) for task, count in items.items()}
    return replace(plan, specs=tuple(replace(spec, sample=limits[spec.name]) for spec in plan.specs if spec.name in limits))


@dataclass(frozen=True)
class Screening:
    """The result of screening: which readouts were kept of how many, on how many items of each task, for which budget."""

    of: int
    kept: tuple[str, ...]
    items: dict[str, int | None]
    budget: int

    @classmethod
    def choose(
        cls, plan: EvaluationPlan, part: EvaluationPlan, scores: pd.DataFrame, part_texts: int, texts: Texts, budget: int
    ) -> Screening:
        """Keep the readouts with the best layer on average over tasks, as many as fit beside what screening stored."""
        best = scores.groupby([*READOUT_COLUMNS, "task"])["score"].max().groupby(READOUT_COLUMNS).mean()
        order = best.dropna().sort_values(ascending=False).index[:_SCREEN_KEEP]
        kept = [Readout(*map(str, key)).name for key in order]
        taken = plan.bytes(texts) * part_texts / _distinct(texts)

        def result() -> Screening:
            return cls(len(plan.readouts), tuple(kept), {spec.name: spec.sample for spec in part.specs}, budget)

        while len(kept) > 1 and result().applied_to(plan).bytes(texts) > _SCREEN_ABOVE * budget - taken:
            kept.pop()
        return result()

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any] | None, budget: int | None) -> Screening | None:
        """What an earlier run of this plan decided, where it was for the same budget."""
        known = (manifest or {}).get("screened")
        if known is None or known["budget"] != budget:
            return None
        return cls(known["of"], tuple(known["kept"]), dict(known["items"]), known["budget"])

    def applied_to(self, plan: EvaluationPlan) -> EvaluationPlan:
        """The plan with the readouts that were kept, and the default one where it was asked for: gains are given over it."""
        default = [readout for readout in plan.readouts if readout == Readout()]
        return replace(plan, readouts=tuple(dict.fromkeys([*map(Readout.parse, self.kept), *default])))

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {"of": self.of, "kept": list(self.kept), "items": self.items, "budget": self.budget}


def warnings(
    plan: EvaluationPlan, screening: Screening | None, counts: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What a reader should know before believing the scores."""
    out = []
    for template, cut in counts["truncated"].items():
        if cut:
            out.append(f"{cut} of {counts['texts']} texts were cut to {plan.max_length} tokens under template {template!r}.")
    if screening is not None:
        out.append(
            f"the store's budget does not hold all {screening.of} readouts of all texts: they were screened on a part "
            f"of each task, and the best {len(screening.kept)} were scored in full. Raise store_size= to score all."
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
            reasons.setdefault((result["task"], result["reason"].split(":")[0]), []).append(result["reason"])
    lines = []
    for (task, _), same in reasons.items():
        more = f" (and {len(same) - 1} more of its layers and readouts)" if len(same) > 1 else ""
        lines.append({"task": task, "reason": same[0] + more})
    return lines
