"""Checkpoints of one model: hub revisions, folders given one by one, or the folders inside one; in the order of their steps."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.models import LoadedModel
from layerscope.studies.shared.specs import Spec, read_specs
from layerscope.studies.shared.wording import lists

log = logging.getLogger("layerscope")


@dataclass(frozen=True)
class Step:
    """One checkpoint: its number of training steps (infinite where its name has none: it counts as the last) and its model."""

    number: float
    spec: Spec

    @property
    def shown(self) -> str:
        """Its number, or its name."""
        return f"{self.number:.0f}" if math.isfinite(self.number) else self.spec.label


def find_steps(models: list[str | Path | LoadedModel], wanted: list[str]) -> list[Step]:
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
            f"{one.label} is one model: checkpoints need several. Give a folder that holds a folder per step, several folders, "
            "or a hub model with --set steps=step0,step1000."
        )
    if wanted:
        raise LayerscopeError("steps goes with one model: a hub model or a folder that holds the checkpoints.")
    return _ordered([Step(step_number(spec.label), spec) for spec in specs])


def step_number(name: str) -> float:
    """The number after `step` or `checkpoint` in a name, else its last whole number; infinite where there is none.

    >>> step_number("pythia-410m@step3000"), step_number("checkpoint-500"), step_number("main")
    (3000.0, 500.0, inf)
    """
    found = re.findall(r"(?:step|checkpoint)[-_]?(\d+)", name.lower()) or re.findall(r"\d+", name)
    return float(found[-1]) if found else math.inf


def _inside(folder: Path, wanted: list[str], parent: Spec) -> list[Step]:
    found = {path.name: path for path in sorted(folder.iterdir()) if (path / "config.json").is_file()}
    if not found:
        raise LayerscopeError(f"{folder} is no model and holds none: no config.json in it or in its folders.")
    names = list(found)
    if wanted:
        by_number = {step_number(name): name for name in found}
        names = []
        for each in wanted:
            name = each if each in found else by_number.get(float(each)) if each.isdigit() else None
            if name is None:
                raise UnknownNameError(f"step in {folder}", each, found)
            names.append(name)
    return [Step(step_number(name), Spec(found[name], name, parent.options)) for name in names]


def _revisions(one: Spec, wanted: list[str]) -> list[Step]:
    if not wanted:
        raise LayerscopeError(
            f"{one.label} has no steps yet: name its revisions, such as --set steps=step0,step1000,step143000, or give a folder."
        )
    repo = str(one.model).partition("@")[0]
    names = [f"step{each}" if each.isdigit() else each for each in wanted]
    return [Step(step_number(name), Spec(f"{repo}@{name}", name, one.options)) for name in names]


def _ordered(steps: list[Step]) -> list[Step]:
    if len(steps) < 2:
        raise LayerscopeError(f"checkpoints need at least two steps, and {len(steps)} was found: {steps[0].spec.label}.")
    labels = [step.spec.label for step in steps]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise LayerscopeError(f"the step {twice!r} was given twice.")
    return sorted(steps, key=lambda step: (step.number, step.spec.label))


def same_weights(steps: list[Step], sha256: list[str | None]) -> list[str]:
    """A warning for each group of steps whose weights are the very same: some published steps serve another step's files."""
    out = []
    for digest in dict.fromkeys(held for held in sha256 if held):
        group = [step.shown for step, held in zip(steps, sha256, strict=True) if held == digest]
        if len(group) > 1:
            out.append(f"steps {lists(group)} hold the very same weights: where they come from, one stands for another.")
    return out


def forget_download(spec: Spec, commit: str | None) -> bool:
    """Delete a hub revision from the hub cache; whether there was one."""
    if not spec.on_hub or not commit:
        return False
    from huggingface_hub import constants, scan_cache_dir

    held = scan_cache_dir(constants.HF_HUB_CACHE)
    known = {revision.commit_hash for repo in held.repos for revision in repo.revisions}
    if commit not in known:
        return False
    plan = held.delete_revisions(commit)
    log.info("%s: freeing %s in the hub cache", spec.label, plan.expected_freed_size_str)
    plan.execute()
    return True
