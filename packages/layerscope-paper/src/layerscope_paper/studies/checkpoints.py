"""When in training do the curves take their shape?

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
    """When the shape of the curves comes about."""

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
        """The checkpoints, each by itself."""
        return [
            step.identity(request) for step in find_steps(request.models, request.options["steps"])
        ]

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile one checkpoint after the other; a finished one is not loaded again."""
        request = canonical(request)
        steps = find_steps(request.models, request.options["steps"])
        found: dict[str, Profile] = {}
        for step in steps:
            found |= Profiles.of(request, [step], bar, "prompt_entropy")
            if request.options["clean"]:
                forget_download(step, found[step.label].manifest["model"].get("revision"))
        runs = Profiles(request, found)
        table = runs.table({label: {"step": step_number(label)} for label in runs})
        given = read_specs(request.models)
        conventions = {
            "of": given[0].label if len(given) == 1 else None,
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
        """A panel per metric, colored by step."""
        order = table.drop_duplicates("model").sort_values(["step", "model"])
        labels = order["model"].tolist()
        return draw_ordered(
            table, labels, [step_label(label) for label in labels], "step", manifest
        )


def step_label(label: str) -> str:
    """A checkpoint's number of training steps, or its name where that has none."""
    return f"{number:.0f}" if math.isfinite(number := step_number(label)) else label


def find_steps(models: Sequence[str | Path | LoadedModel | Spec], wanted: list[str]) -> list[Spec]:
    """The checkpoints that a request means, least trained first."""
    specs = read_specs(models)
    if len(specs) == 1:
        one = specs[0]
        folder = None if isinstance(one.model, LoadedModel) else Path(str(one.model)).expanduser()
        if folder is not None and folder.is_dir() and not (folder / "config.json").is_file():
            return _ordered(_inside(folder, wanted, one))
        if one.on_hub:
            return _ordered(_revisions(one, wanted))
        raise LayerscopeError(
            f"{one.label} is one model: checkpoints need several. Give a folder that holds a "
            "folder per step, several folders, or a hub model with steps=step0,step1000."
        )
    if wanted:
        raise LayerscopeError(
            "steps goes with one model: a hub model or a folder that holds the checkpoints."
        )
    return _ordered(specs)


def step_number(name: str) -> float:
    """The number after `step` or `checkpoint` in a name, else its last whole number; infinite, the
    last, where there is none.

    >>> step_number("pythia-410m@step3000"), step_number("checkpoint-500"), step_number("main")
    (3000.0, 500.0, inf)
    """
    found = re.findall(r"(?:step|checkpoint)[-_]?(\d+)", name.lower()) or re.findall(r"\d+", name)
    return float(found[-1]) if found else math.inf


def _inside(folder: Path, wanted: list[str], parent: Spec) -> list[Spec]:
    found = {
        path.name: path for path in sorted(folder.iterdir()) if (path / "config.json").is_file()
    }
    if not found:
        raise LayerscopeError(
            f"{folder} is not a model and holds no models: there is no config.json in it or in its "
            "folders."
        )
    names = list(found)
    if wanted:
        by_number = {step_number(name): name for name in found}
        names = []
        for each in wanted:
            name = each if each in found else by_number.get(float(each)) if each.isdigit() else None
            if name is None:
                raise UnknownNameError(f"step in {folder}", each, found)
            names.append(name)
    return [Spec(found[name], name, parent.options) for name in names]


def _revisions(one: Spec, wanted: list[str]) -> list[Spec]:
    if not wanted:
        raise LayerscopeError(
            f"{one.label} has no steps yet: name its revisions, such as "
            "steps=step0,step1000,step143000, or give a folder."
        )
    repo = str(one.model).partition("@")[0]
    names = [f"step{each}" if each.isdigit() else each for each in wanted]
    return [Spec(f"{repo}@{name}", name, one.options) for name in names]


def _ordered(steps: list[Spec]) -> list[Spec]:
    if len(steps) < 2:
        raise LayerscopeError(
            f"checkpoints need at least two steps, and {len(steps)} was found: {steps[0].label}."
        )
    labels = [step.label for step in steps]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise InvalidValueError(f"the step {twice!r} was given twice.")
    return sorted(steps, key=lambda step: (step_number(step.label), step.label))


def doubts(runs: Profiles) -> list[str]:
    """What says that these are not checkpoints of one training: other shapes, or steps that hold
    the very same weights."""
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
                f"steps {join_words(steps)} hold the very same weights: their source serves one "
                "step in place of another."
            )
    return out


def forget_download(spec: Spec, commit: str | None) -> bool:
    """Delete a hub revision from the hub cache. Returns whether it was there."""
    if not spec.on_hub or not commit:
        return False
    from huggingface_hub import constants, scan_cache_dir

    cache = scan_cache_dir(constants.HF_HUB_CACHE)
    known = {revision.commit_hash for repo in cache.repos for revision in repo.revisions}
    if commit not in known:
        return False
    plan = cache.delete_revisions(commit)
    log.info("%s: freeing %s in the hub cache", spec.label, plan.expected_freed_size_str)
    plan.execute()
    return True


def verdict(steps: list[str], runs: Profiles) -> list[str]:
    """When the valley forms, with the sink token and without it, and how the metrics move."""
    valleys = runs.valleys
    profiles = list(runs.values())
    firsts = {
        sink: next((i for i, v in enumerate(valleys) if v.by_sink[sink].is_valley), None)
        for sink in SINKS
    }
    out = [_forms(steps, valleys, sink, first) for sink, first in firsts.items()]
    kept, dropped = deeper(valleys[0], valleys[-1], runs.seed)
    span = f"from step {steps[0]} to step {steps[-1]}"
    out.append(
        f"The deepest dip changes by {kept} nats {span}; without the sink token by {dropped}."
    )
    measured = set(profiles[0].table["metric"])
    out += [
        _movement(runs, metric, span)
        for metric in ("prompt_entropy", "curvature")
        if metric in measured
    ]
    out += invariance(profiles[0], profiles[-1], (f"step {steps[0]}", f"step {steps[-1]}"))
    return [
        in_short(_answer(*(None if first is None else steps[first] for first in firsts.values()))),
        *out,
    ]


def _answer(kept: str | None, dropped: str | None) -> str:
    """Whether and when a valley forms, from the first steps that have a clear one."""
    if kept is None and dropped is None:
        return (
            "no clear valley of prompt entropy forms by the last step, with the sink token or "
            "without it"
        )
    if kept is None:
        return (
            f"a valley of prompt entropy is clear only without the sink token, from step {dropped} "
            "on"
        )
    tail = (
        "and none is clear without the sink token"
        if dropped is None
        else f"and from step {dropped} on without the sink token"
    )
    return f"a valley of prompt entropy is first clear at step {kept}, {tail}"


def _forms(steps: list[str], valleys: list[Valleys], sink: str, first: int | None) -> str:
    dips = [valley.by_sink[sink] for valley in valleys]
    deepest = max(range(len(dips)), key=lambda i: np.nan_to_num(dips[i].depth.value, nan=-1.0))
    text = "no step has a clear valley of prompt entropy"
    if first is not None:
        clear = [step for step, dip in zip(steps, dips, strict=True) if dip.is_valley]
        place = f"layer {dips[first].place} of {valleys[first].layers}"
        text = (
            f"prompt entropy has a clear valley at {len(clear)} of {len(steps)} steps, first at "
            f"step {clear[0]} ({place})"
        )
    depth = f"{dips[deepest].depth.format(signed=False)} nats at step {steps[deepest]}"
    return sentence(
        f"{'Without the sink token: ' * (sink == 'drop')}{text}; the deepest dip is {depth}."
    )


def _movement(runs: Profiles, metric: str, span: str) -> str:
    """The change over training of the middle half of the layers and of the others."""
    name = metric.replace("_", " ").capitalize()
    known = metrics()[metric].info
    if len({valley.layers for valley in runs.valleys}) > 1:
        return f"{name}: the steps have different numbers of layers, nothing to pair."
    pair = runs.minus(runs.valleys[0].label, runs.valleys[-1].label, [(metric, "raw")])
    inner = middle_half(pair.blocks + 1)
    changes = [
        values[:, where].mean(1) for values in pair.values.values() for where in (inner, ~inner)
    ]
    kept, ends, dropped, without = means_of(changes, runs.seed)
    text = f"{name} {MOVES[kept.sign]} in the middle half of the layers {span}, {kept} {known.unit}"
    return (
        f"{text}, and {MOVES[ends.sign]} in the others, {ends}; without the sink token {dropped} "
        f"and {without}."
    )


STUDY = Checkpoints()
