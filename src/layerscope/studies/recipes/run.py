"""Running a recipe: one study after the other; one that fails does not stop the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.store import atomic
from layerscope.studies.recipes.read import Recipe, Step
from layerscope.studies.run import study

SUMMARY = "recipe.json"


@dataclass
class Outcome:
    """How one step ended."""

    step: str
    status: str  # complete or failed
    verdict: list[str]
    error: str | None
    run: Path
    seconds: float


def chosen_steps(recipe: Recipe, only: Sequence[str] | None) -> list[Step]:
    """The steps to run: all, or some by name."""
    names = [step.name for step in recipe.steps]
    for name in only or ():
        if name not in names:
            raise UnknownNameError(f"step of the recipe {recipe.name}", name, names)
    return [step for step in recipe.steps if not only or step.name in only]


def run_recipe(
    recipe: Recipe,
    out: str | Path,
    *,
    only: Sequence[str] | None = None,
    device: str | None = None,
    offline: bool = False,
    progress: bool | None = None,
    tell: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run every step into a folder of its own; finished ones return at once. `tell` hears of each as it ends.

    What happened is kept in recipe.json beside the steps' folders.
    """
    folder = Path(out)
    outcomes: list[Outcome] = []
    for step in chosen_steps(recipe, only):
        outcomes.append(_run(step, folder / step.name, device, offline, progress))
        told: list[dict[str, Any]] = [dict(vars(outcome)) for outcome in outcomes]
        atomic.write_json(folder / SUMMARY, {"recipe": recipe.name, "about": recipe.about, "steps": told})
        tell(outcomes[-1])
    return outcomes


def _run(step: Step, folder: Path, device: str | None, offline: bool, progress: bool | None) -> Outcome:
    clock = time.perf_counter()
    settings = dict(step.settings)
    dtype = settings.pop("dtype")
    try:
        run = study(
            step.study,
            *step.models,
            texts=settings.pop("data"),
            out=folder,
            model_options={"dtype": dtype, "device": device},
            offline=offline,
            progress=progress,
            **settings,
            **step.options,
        )
    except Exception as error:  # whatever it is, the other steps are worth having
        what = str(error) if isinstance(error, LayerscopeError) else f"{type(error).__name__}: {error}"
        return Outcome(step.name, "failed", [], what, folder, time.perf_counter() - clock)
    return Outcome(step.name, "complete", run.verdict, None, folder, time.perf_counter() - clock)
