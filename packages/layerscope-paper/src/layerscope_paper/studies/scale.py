"""Study `scale`: the curves of several sizes of one family.

Profiles several sizes of one family on the same texts and puts them on one axis of depth.

Table: the profile's rows of every size, and the depth of its deepest dip of prompt entropy. Figure:
a panel per metric, a color per size. Verdict: whether the dip deepens from the smallest size to the
largest, with and without the sink token.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd

from layerscope.progress import Progress
from layerscope_paper.studies.base import METRICS, Result, Study
from layerscope_paper.studies.shared.figures import Figure, draw_ordered
from layerscope_paper.studies.shared.models import Request, canonical, read_specs
from layerscope_paper.studies.shared.numbers import SINKS, in_short, mean_of
from layerscope_paper.studies.shared.profiles import (
    Profiles,
    by_layer,
    deeper,
    invariance,
    token_counts,
)

_DEEPENS = {1: "deepens", -1: "gets shallower", 0: "does not clearly change"}


class Scale(Study):
    """The curves of several sizes of one family."""

    name = "scale"
    title = "Sizes of a family, layer by layer"
    paper = "Fig. 12"
    models = (2, None)
    options = (METRICS,)

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile each size, smallest first in table and verdict."""
        request = canonical(request)
        unordered = Profiles.of(request, read_specs(request.models), bar, "prompt_entropy")
        sizes = {label: run.manifest["model"]["parameters"] for label, run in unordered.items()}
        sizes = dict(sorted(sizes.items(), key=lambda pair: (pair[1], pair[0])))
        runs = Profiles(request, {label: unordered[label] for label in sizes})
        table = runs.table({label: {"parameters": size} for label, size in sizes.items()})
        warnings = runs.warnings
        if len({tuple(token_counts(run)) for run in runs.values()}) > 1:
            warnings.insert(
                0,
                (
                    "the models do not read the same tokens: part of the difference is how the "
                    "texts are cut into tokens."
                ),
            )
        families = {str(run.manifest["model"]["family"]) for run in runs.values()}
        if len(families) > 1:
            warnings.insert(
                0,
                (
                    f"these are not sizes of one family ({', '.join(sorted(families))}): more than "
                    "size differs."
                ),
            )
        return Result(table, verdict(runs, sizes), runs.conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw a panel per metric, a color per size."""
        sizes = (
            table.drop_duplicates("model")
            .sort_values("parameters")
            .set_index("model")["parameters"]
        )
        labels = [str(label) for label in sizes.index]
        return draw_ordered(
            table,
            labels,
            [f"{label}\n{sizes[label] / 1e6:.3g} M" for label in labels],
            "model",
            manifest,
        )


def verdict(runs: Profiles, sizes: dict[str, int]) -> list[str]:
    """Describe the change of the dip from the smallest size to the largest, with the sink token and
    without it."""
    labels = list(runs)
    smallest = labels[0]
    largest = labels[-1]
    valleys = runs.valleys
    with_sink, without_sink = deeper(valleys[0], valleys[-1], runs.seed)
    change = _DEEPENS[with_sink.sign]
    without = f"without the sink token it {_DEEPENS[without_sink.sign]}"
    out = [
        f"The deepest dip of prompt entropy {change} from {smallest} "
        f"({sizes[smallest] / 1e6:.3g} M) to {largest} ({sizes[largest] / 1e6:.3g} M): {with_sink} "
        f"nats; {without}, {without_sink}."
    ]
    if len(valleys) > 2:
        steps = [
            f"{a.label} → {b.label} {deeper(a, b, runs.seed)[0]}" for a, b in pairwise(valleys)
        ]
        out.append(f"Step by step: {', '.join(steps)}.")
    out += [valley.sentence() for valley in valleys]
    means = []
    for sink in SINKS:
        small, large = (
            by_layer(runs[label], "prompt_entropy", sink, runs.texts).mean(1)
            for label in (smallest, largest)
        )
        means.append(mean_of(large - small, runs.seed))
    out.append(
        f"Mean over layers, {largest} minus {smallest}: {means[0]}; without the sink token "
        f"{means[1]}."
    )
    if with_sink.sign == without_sink.sign:
        without = "the same holds without the sink token"
    answer = f"with size, the deepest dip of prompt entropy {change}; {without}"
    views = invariance(runs[smallest], runs[largest], (smallest, largest))
    return [in_short(answer), *out, *views]


STUDY = Scale()
