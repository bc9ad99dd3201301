"""One model over its training: every layer at every checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from layerscope.progress import Progress
from layerscope.studies.base import Option, Request, Result, Study
from layerscope.studies.shared.profiles import CURVES, canonical, profile_of
from layerscope.studies.shared.specs import read_specs
from layerscope.studies.shared.valleys import Valleys, profile_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Checkpoints(Study):
    """When the shape of the curves comes about."""

    name: ClassVar[str] = "checkpoints"
    title: ClassVar[str] = "Every layer over training"
    paper: ClassVar[str] = "Fig. 4, 11"
    models: ClassVar[tuple[int, int | None]] = (1, None)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("steps", [], "revisions of a hub model (step0,step1000), or some of a folder's steps; empty: all in the folder"),
        Option("metrics", CURVES, "what is measured at every layer, as `layerscope profile --metrics` takes it"),
        Option("clean", False, "delete each hub revision from the hub cache once it is measured, also one that was there before"),
    )

    def identify(self, request: Request) -> Any:
        """The checkpoints, each by itself."""
        from layerscope.studies.checkpoints_parts.steps import find_steps

        return [step.spec.identity(request) for step in find_steps(request.models, request.options["steps"])]

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile one checkpoint after the other; a finished one is not loaded again."""
        from layerscope.studies.checkpoints_parts.steps import find_steps, forget_download, same_weights
        from layerscope.studies.checkpoints_parts.verdict import verdict

        request = canonical(request)
        measured = ["prompt_entropy", *(m for m in request.options["metrics"] if m != "prompt_entropy")]
        steps = find_steps(request.models, request.options["steps"])
        runs = []
        for step in steps:
            runs.append(profile_of(request, step.spec, measured, bar))
            if request.options["clean"]:
                forget_download(step.spec, runs[-1].manifest["model"].get("revision"))
        texts = len(request.texts or ())
        valleys = [Valleys.of(run, step.spec.label, request.seed, texts) for step, run in zip(steps, runs, strict=True)]
        rows = [profile_rows(run, step.spec.label, step=step.number) for step, run in zip(steps, runs, strict=True)]
        depths = [row for step, v in zip(steps, valleys, strict=True) for row in v.rows(step=step.number)]
        table = pd.concat([*rows, pd.DataFrame(depths)], ignore_index=True)
        given = read_specs(request.models)
        conventions = {
            "of": given[0].label if len(given) == 1 else None,
            "models": {step.spec.label: run.manifest["model"] for step, run in zip(steps, runs, strict=True)},
            "metrics": runs[0].manifest["conventions"]["metrics"],
            "steps": "the number in a checkpoint's name; one without a number counts as the last",
            "valley": "called one where the low end of its depth's interval is above a tenth of its shoulders",
        }
        warnings = list(dict.fromkeys(line for run in runs for line in run.manifest["warnings"]))
        warnings = same_weights(steps, [run.manifest["model"].get("weights_sha256") for run in runs]) + warnings
        return Result(table, verdict(steps, runs, valleys, texts, request.seed), conventions, warnings)

    def passes(self, options: dict[str, Any]) -> float:
        """One per step."""
        return float(max(1, len(options["steps"])))

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """A panel per metric, coloured by step."""
        from layerscope.studies.shared.panels import draw_ordered

        order = table.drop_duplicates("model").sort_values(["step", "model"])
        labels = order["model"].tolist()
        shown = [f"{step:.0f}" if step < float("inf") else label for label, step in zip(labels, order["step"], strict=True)]
        return draw_ordered(table, labels, shown, "step", manifest)


STUDY = Checkpoints()
