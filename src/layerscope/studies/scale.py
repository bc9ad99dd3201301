"""Does the shape of the curves change with a model's size?

Profiles several sizes of one family on the same texts and puts them on one axis of depth.

Table: the profile's rows of every size, and the depth of its deepest dip of prompt entropy. Figure: a panel per metric, a color
per size. Verdict: whether the dip deepens from the smallest size to the largest, with and without the sink token.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.curves import (
    VALLEY,
    Valleys,
    by_layer,
    deeper,
    draw_ordered,
    in_short,
    invariance,
    mean_of,
    profile_rows,
    sentence,
)
from layerscope.studies.shared.models import CURVES, Request, canonical, profile_of, read_specs, token_fingerprint

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Scale(Study):
    """Does the shape of the curves change with size?"""

    name: ClassVar[str] = "scale"
    title: ClassVar[str] = "Sizes of a family, layer by layer"
    paper: ClassVar[str] = "Fig. 12"
    models: ClassVar[tuple[int, int | None]] = (2, None)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("metrics", CURVES, "metrics of every layer, as for `layerscope profile --metrics`"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile each size, smallest first in table and verdict."""
        request = canonical(request)
        measured = ["prompt_entropy", *(m for m in request.options["metrics"] if m != "prompt_entropy")]
        runs = [(spec, profile_of(request, spec, measured, bar)) for spec in read_specs(request.models)]
        runs.sort(key=lambda pair: (pair[1].manifest["model"]["parameters"], pair[0].label))
        sizes = {spec.label: int(run.manifest["model"]["parameters"]) for spec, run in runs}
        valleys = [Valleys.of(run, spec.label, request.seed, len(request.texts or ())) for spec, run in runs]
        rows = [profile_rows(run, spec.label, parameters=sizes[spec.label]) for spec, run in runs]
        depths = pd.DataFrame([row for v in valleys for row in v.rows(parameters=sizes[v.label])])
        table = pd.concat([*rows, depths], ignore_index=True)
        means = [_mean_entropy(run, len(request.texts or ())) for _, run in runs]
        warnings = [f"{spec.label}: {line}" for spec, run in runs for line in run.manifest["warnings"]]
        if len({token_fingerprint(request, spec) for spec, _ in runs} - {None}) > 1:
            warnings.insert(
                0, "the models do not read the same tokens: part of the difference is how the texts are cut into tokens."
            )
        families = {str(run.manifest["model"]["family"]) for _, run in runs}
        if len(families) > 1:
            warnings.insert(0, f"these are not sizes of one family ({', '.join(sorted(families))}): more than size differs.")
        conventions = {
            "models": {spec.label: run.manifest["model"] for spec, run in runs},
            "metrics": runs[0][1].manifest["conventions"]["metrics"],
            "valley": VALLEY,
        }
        (smallest, one), (largest, other) = runs[0], runs[-1]
        views = invariance(one, other, (smallest.label, largest.label))
        return Result(table, [*_verdict(valleys, sizes, means, request.seed), *views], conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """A panel per metric, a color per size."""
        sizes = table.drop_duplicates("model").sort_values("parameters").set_index("model")["parameters"]
        labels = [str(label) for label in sizes.index]
        return draw_ordered(table, labels, [f"{label}\n{sizes[label] / 1e6:.3g} M" for label in labels], "model", manifest)


def _mean_entropy(run: Profile, texts: int) -> dict[str, np.ndarray]:
    """The mean over layers of each prompt's entropy."""
    return {sink: by_layer(run.prompts, "prompt_entropy", sink, texts).to_numpy().mean(axis=1) for sink in ("keep", "drop")}


def _verdict(valleys: list[Valleys], sizes: dict[str, int], means: list[dict[str, np.ndarray]], seed: int) -> list[str]:
    first, last = valleys[0], valleys[-1]
    out: list[str] = []
    does_by_sink: list[str] = []
    for sink, words in (("keep", ""), ("drop", "Without the sink token: ")):
        one, other = (v.kept if sink == "keep" else v.dropped for v in (first, last))
        change = deeper(one, other, seed)
        does = {1: "deepens", -1: "gets shallower", 0: "does not clearly change"}[change.sign]
        where = f"from {first.label} ({sizes[first.label] / 1e6:.3g} M) to {last.label} ({sizes[last.label] / 1e6:.3g} M)"
        does_by_sink.append(does)
        out.append(sentence(f"{words}the deepest dip of prompt entropy {does} {where}: {change} nats."))
    if len(valleys) > 2:
        steps = [f"{a.label} → {b.label} {deeper(a.kept, b.kept, seed)}" for a, b in pairwise(valleys)]
        out.append(f"Step by step: {', '.join(steps)}.")
    out += [valley.sentence() for valley in valleys]
    kept, dropped = (mean_of(means[-1][sink] - means[0][sink], seed) for sink in ("keep", "drop"))
    out.append(f"Mean over layers, {last.label} minus {first.label}: {kept}; without the sink token {dropped}.")
    with_sink, without_sink = does_by_sink
    answer = f"with size, the deepest dip of prompt entropy {with_sink}"
    same = "; the same holds without the sink token"
    tail = same if with_sink == without_sink else f"; without the sink token it {without_sink}"
    return [in_short(answer + tail), *out]


STUDY = Scale()
