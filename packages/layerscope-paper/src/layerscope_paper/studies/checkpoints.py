"""Study `checkpoints`: the curves over training.

Profiles one checkpoint after another (hub revisions, folders given one by one, or the folders
inside one) in the order of their training steps, one model in memory at a time.

Table: the profile's rows of every step, and the depth of its deepest dip of prompt entropy. Figure:
a panel per metric, colored by step. Verdict: when a valley forms, with and without the sink token,
and how the metrics move from the first step to the last.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.errors import InvalidValueError, LayerscopeError, UnknownNameError
from layerscope.metrics import metrics
from layerscope.models import LoadedModel
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope_paper.studies.base import METRICS, Option, Result, Study
from layerscope_paper.studies.shared.figures import Figure, draw_ordered
from layerscope_paper.studies.shared.models import Request, Spec, canonical, read_specs
from layerscope_paper.studies.shared.numbers import (
    MOVES,
    SINKS,
    in_short,
    join_words,
    means_of,
    middle_half,
    sentence,
)
from layerscope_paper.studies.shared.profiles import Profiles, Valleys, deeper, invariance

log = logging.getLogger("layerscope")


class Checkpoints(Study):
    """The curves of one model over training."""

    name = "checkpoints"
    title = "Every layer over training"
    paper = "Fig. 4, 11"
    models = (1, None)
    options = (
        Option(
            "steps",
            [],
            (
                "revisions of a hub model (step0,step1000), or some steps of a folder; empty: all "
                "of the folder"
            ),
        ),
        METRICS,
        Option(
            "clean",
            False,
            (
                "delete each hub revision from the hub cache once it is measured, even if it was "
                "there before"
            ),
        ),
    )

    def identify(self, request: Request) -> Any:
        """Identify each checkpoint."""
        return [
            step.identity(request) for step in find_steps(request.models, request.options["steps"])
        ]

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile one checkpoint after the other; a finished one is not loaded again."""
        request = canonical(request)
        steps = find_steps(request.models, request.options["steps"])
        profiles: dict[str, Profile] = {}
        for step in steps:
            profiles |= Profiles.of(request, [step], bar, "prompt_entropy")
            if request.options["clean"]:
                forget_download(step, profiles[step.label].manifest["model"].get("revision"))
        runs = Profiles(request, profiles)
        table = runs.table({label: {"step": step_number(label)} for label in runs})
        specs = read_specs(request.models)
        conventions = {
            "of": specs[0].label if len(specs) == 1 else None,
            **runs.conventions,
            "steps": "the number in a checkpoint's name; one without a number counts as the last",
        }
        warnings = [
            *doubts(runs),
            *dict.fromkeys(line for run in runs.values() for line in run.manifest["warnings"]),
        ]
        return Result(
            table, verdict([step_label(label) for label in runs], runs), conventions, warnings
        )

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw a panel per metric, colored by step."""
        order = table.drop_duplicates("model").sort_values(["step", "model"])
        labels = order["model"].tolist()
        return draw_ordered(
            table, labels, [step_label(label) for label in labels], "step", manifest
        )


def step_label(label: str) -> str:
    """Return a checkpoint's number of training steps, or its name where that has none."""
    number = step_number(label)
    return f"{number:.0f}" if math.isfinite(number) else label


def find_steps(models: Sequence[str | Path | LoadedModel | Spec], steps: list[str]) -> list[Spec]:
    """Return the checkpoints of a request, least trained first."""
    specs = read_specs(models)
    if len(specs) == 1:
        spec = specs[0]
        folder = Path(str(spec.model)).expanduser()
        if spec.on_hub:
            return _ordered(_revisions(spec, steps))
        if folder.is_dir() and not (folder / "config.json").is_file():
            return _ordered(_inside(folder, steps, spec))
        raise LayerscopeError(
            f"{spec.label} is one model: checkpoints need several. Give a folder that holds a "
            "folder per step, several folders, or a hub model with steps=step0,step1000."
        )
    if steps:
        raise LayerscopeError(
            f"steps={','.join(steps)} goes with one model (a hub model or a folder of "
            f"checkpoints), and {len(specs)} were given."
        )
    return _ordered(specs)


def step_number(name: str) -> float:
    """Return the number after `step` or `checkpoint` in a name, else its last whole number;
    infinity, which sorts last, where there is none.

    >>> step_number("pythia-410m@step3000"), step_number("checkpoint-500"), step_number("main")
    (3000.0, 500.0, inf)
    """
    numbers = re.findall(r"(?:step|checkpoint)[-_]?(\d+)", name.lower()) or re.findall(r"\d+", name)
    return float(numbers[-1]) if numbers else math.inf


def _inside(folder: Path, steps: list[str], parent: Spec) -> list[Spec]:
    """Return the checkpoints inside a folder: all, or those of some steps."""
    paths = {
        path.name: path for path in sorted(folder.iterdir()) if (path / "config.json").is_file()
    }
    if not paths:
        raise LayerscopeError(
            f"{folder} is not a model and holds no models: there is no config.json in it or in its "
            "folders."
        )
    by_number = {step_number(name): name for name in paths}
    names = []
    for step in steps or paths:
        name = by_number.get(float(step), step) if step.isdigit() else step
        if name not in paths:
            raise UnknownNameError(f"step in {folder}", step, paths)
        names.append(name)
    return [Spec(paths[name], name, parent.options) for name in names]


def _revisions(spec: Spec, steps: list[str]) -> list[Spec]:
    """Return the revisions of a hub model."""
    if not steps:
        raise LayerscopeError(
            f"{spec.label} has no steps yet: name its revisions, such as "
            "steps=step0,step1000,step143000, or give a folder."
        )
    repo = str(spec.model).partition("@")[0]
    names = [f"step{step}" if step.isdigit() else step for step in steps]
    return [Spec(f"{repo}@{name}", name, spec.options) for name in names]


def _ordered(steps: list[Spec]) -> list[Spec]:
    """Return checkpoints by training step; refuse fewer than two, or the same twice."""
    if len(steps) < 2:
        raise LayerscopeError(
            f"checkpoints need at least two steps, and {len(steps)} was found: {steps[0].label}. "
            "Give another."
        )
    labels = [step.label for step in steps]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise InvalidValueError(f"the step {twice!r} was given twice: give each step once.")
    return sorted(steps, key=lambda step: (step_number(step.label), step.label))


def doubts(runs: Profiles) -> list[str]:
    """Return reasons to doubt that these are checkpoints of one training: other shapes, or steps
    with the same weights."""
    shapes: dict[str, list[str]] = {}
    weights: dict[str | None, list[str]] = {}
    for label, run in runs.items():
        model = run.manifest["model"]
        shape = (
            f"{model.get('family')}, {model.get('n_blocks')} blocks of width {model.get('width')}"
        )
        shapes.setdefault(shape, []).append(label)
        weights.setdefault(model.get("weights_sha256"), []).append(step_label(label))
    out = []
    if len(shapes) > 1:
        differing = "; ".join(f"{join_words(labels)}: {shape}" for shape, labels in shapes.items())
        out = [
            (
                "these are not checkpoints of one training, and more than training differs between "
                f"them ({differing})."
            )
        ]
    for digest, steps in weights.items():
        if digest and len(steps) > 1:  # some published steps serve another step's files
            out.append(
                f"steps {join_words(steps)} hold the same weights: their source serves one step in "
                "place of another."
            )
    return out


def forget_download(spec: Spec, commit: str | None) -> bool:
    """Delete a hub revision from the hub cache; return True if it was there."""
    if not spec.on_hub or not commit:
        return False
    from huggingface_hub import constants, scan_cache_dir

    cache = scan_cache_dir(constants.HF_HUB_CACHE)
    if commit not in {revision.commit_hash for repo in cache.repos for revision in repo.revisions}:
        return False
    plan = cache.delete_revisions(commit)
    log.info("%s: freeing %s in the hub cache", spec.label, plan.expected_freed_size_str)
    plan.execute()
    return True


def verdict(steps: list[str], runs: Profiles) -> list[str]:
    """Describe when the valley forms, with the sink token and without it, and the changes of the
    metrics."""
    valleys = runs.valleys
    profiles = list(runs.values())
    first_clear: dict[str, str | None] = {}
    out = []
    for sink in SINKS:
        clear = [i for i, valley in enumerate(valleys) if valley.by_sink[sink].is_valley]
        first_clear[sink] = steps[clear[0]] if clear else None
        out.append(_formation(steps, valleys, sink, clear))
    with_sink, without_sink = deeper(valleys[0], valleys[-1], runs.seed)
    span = f"from step {steps[0]} to step {steps[-1]}"
    out.append(
        f"The deepest dip changes by {with_sink} nats {span}; without the sink token by "
        f"{without_sink}."
    )
    measured = set(profiles[0].table["metric"])
    out += [
        _movement(runs, metric, span)
        for metric in ("prompt_entropy", "curvature")
        if metric in measured
    ]
    out += invariance(profiles[0], profiles[-1], (f"step {steps[0]}", f"step {steps[-1]}"))
    return [in_short(_answer(first_clear["keep"], first_clear["drop"])), *out]


def _answer(with_sink: str | None, without_sink: str | None) -> str:
    """Say from which step on a valley is clear, with the sink token and without it."""
    if with_sink is not None:
        text = f"a valley of prompt entropy is first clear at step {with_sink}, and "
        if without_sink is None:
            return f"{text}none is clear without the sink token"
        return f"{text}from step {without_sink} on without the sink token"
    if without_sink is not None:
        return (
            "a valley of prompt entropy is clear only without the sink token, from step "
            f"{without_sink} on"
        )
    return (
        "no clear valley of prompt entropy forms by the last step, with the sink token or without "
        "it"
    )


def _formation(steps: list[str], valleys: list[Valleys], sink: str, clear: list[int]) -> str:
    """Describe the steps with a clear valley, and the deepest dip."""
    dips = [valley.by_sink[sink] for valley in valleys]
    deepest = max(range(len(dips)), key=lambda i: np.nan_to_num(dips[i].depth.value, nan=-1.0))
    text = "no step has a clear valley of prompt entropy"
    if clear:
        first_clear = clear[0]
        text = (
            f"prompt entropy has a clear valley at {len(clear)} of {len(steps)} steps, first at "
            f"step {steps[first_clear]} (layer {dips[first_clear].place} of "
            f"{valleys[first_clear].layers})"
        )
    depth = f"{dips[deepest].depth.format(signed=False)} nats at step {steps[deepest]}"
    prefix = "Without the sink token: " if sink == "drop" else ""
    return sentence(f"{prefix}{text}; the deepest dip is {depth}.")


def _movement(runs: Profiles, metric: str, span: str) -> str:
    """Describe the change over training of the middle half of the layers and of the others."""
    name = metric.replace("_", " ").capitalize()
    if len({valley.layers for valley in runs.valleys}) > 1:
        return f"{name}: the steps have different numbers of layers, nothing to pair."
    pair = runs.minus(runs.valleys[0].label, runs.valleys[-1].label, [(metric, "raw")])
    inner = middle_half(pair.blocks + 1)
    changes = [
        values[:, mask].mean(1) for values in pair.values.values() for mask in (inner, ~inner)
    ]
    middle, outer, middle_without, outer_without = means_of(changes, runs.seed)
    return (
        f"{name} {MOVES[middle.sign]} in the middle half of the layers {span}, {middle} "
        f"{metrics()[metric].info.unit}, and {MOVES[outer.sign]} in the others, {outer}; without "
        f"the sink token {middle_without} and {outer_without}."
    )


STUDY = Checkpoints()
