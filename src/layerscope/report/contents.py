"""What a report says, whatever its format: runs of any kind are opened and put together, and metrics correlated with scores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.runs import damage_told, load_run
from layerscope.core.sites import whole_layers
from layerscope.core.statistics import Array, holm
from layerscope.core.untrusted import exists
from layerscope.correlation.maths import Chance, against_chance, null_values, surrogate_curves, undefined_because
from layerscope.correlation.study import MIN_LAYERS
from layerscope.errors import LayerscopeError
from layerscope.report.drawing import Style, styles
from layerscope.report.headline import Headline, headline, marks
from layerscope.report.notices import Notice, notices, same_model
from layerscope.report.sections import sections
from layerscope.report.sources import Block, Curves, Mark, Scores, Source
from layerscope.selection import Choice


def load_any(path: str | Path) -> Any:
    """Whatever run a folder holds, or the choice of a layer in a .json file."""
    if exists(path) and Path(path).is_file() and Path(path).suffix == ".json":
        return Choice.from_json(Path(path))
    return load_run(path)


@dataclass
class Report:
    """Everything a report says. `styles` are those of the curves, then of the scores."""

    curves: list[Curves]
    scores: list[Scores]
    blocks: list[Block]
    marks: list[Mark]
    correlations: list[PairCorrelations]
    notices: list[Notice]
    headline: Headline
    styles: list[Style]
    made: str
    live: dict[str, Any] | None = field(default=None)

    @property
    def runs(self) -> list[Source]:
        """All of them."""
        return [*self.curves, *self.scores, *self.blocks]

    @property
    def models(self) -> list[str]:
        """Names, each once."""
        return list(dict.fromkeys(run.model for run in self.runs))


def read(given: Any) -> Source | Choice:
    """What a report shows of one thing: a folder, a run of any kind, a choice, or something that was read already."""
    thing: Any = load_any(given) if isinstance(given, (str, Path)) else given
    if isinstance(thing, (Curves, Scores, Block, Choice)):
        return thing
    kind = getattr(thing, "kind", None)
    if not isinstance(kind, str):
        raise LayerscopeError(
            f"a report cannot show a {type(thing).__name__}. Give folders of finished runs, runs, or choices of a layer."
        )
    return sections.get(kind).read(thing)


def gather(runs: Iterable[Any], live: dict[str, Any] | None = None) -> Report:
    """Read runs of any kind (folders, runs, choices, or curves and scores from elsewhere) and work out what they show."""
    given = list(runs)
    folders = [str(one) for one in given if isinstance(one, (str, Path))]
    with damage_told(f"a run among {', '.join(folders)}") if folders else nullcontext():
        return _gather([read(one) for one in given], live)


def _gather(sources: Sequence[Source | Choice], live: dict[str, Any] | None) -> Report:
    curves = [one for one in sources if isinstance(one, Curves)]
    scores = [one for one in sources if isinstance(one, Scores)]
    blocks = [one for one in sources if isinstance(one, Block)]
    if not curves and not scores and not blocks:
        raise LayerscopeError("a report needs at least one run: give the folder of a finished run.")
    for score in scores:
        if score.table.empty:
            raise LayerscopeError(f"the evaluation in {score.path} holds no scores: there is nothing to show.")
    _label(curves, scores, blocks)
    marked = marks(curves, scores, [one for one in sources if isinstance(one, Choice)], blocks)
    drawn = styles([(run.family, run.model) for run in curves]) + styles([(run.family, run.model) for run in scores])
    known = {run.model: style for run, style in zip(curves, drawn, strict=False)}
    for place, score in enumerate(scores, start=len(curves)):  # an evaluation looks like the profile of its model
        if score.model in known:
            drawn[place] = Style(known[score.model].color, drawn[place].dash, known[score.model].marker)
    return Report(
        curves,
        scores,
        blocks,
        marked,
        correlate(curves, scores),
        notices(curves, scores, marked, blocks),
        headline(curves, scores, marked, blocks),
        drawn,
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        live,
    )


def _label(curves: Sequence[Curves], scores: Sequence[Scores], blocks: Sequence[Block] = ()) -> None:
    """Short names that tell the runs of a report apart: the model, and what differs where a model has several."""
    for block in blocks:
        block.label = block.label or block.title
    kinds: list[Sequence[Source]] = [curves, scores, blocks]
    for kind in kinds:
        names = [run.model for run in kind]
        for run in kind:
            if run.label:
                continue
            twins = [other for other in kind if other.model == run.model]
            differing = [
                name
                for name in ("final norm", "texts", "longest text", "rows", "α", "preset", "tasks", "views")
                if len({str(other.facts.get(name)) for other in twins}) > 1
            ]
            # as few of them as tell this run from the others
            for most in range(len(differing) + 1):
                used = differing[:most]
                if sum(all(str(o.facts.get(n)) == str(run.facts.get(n)) for n in used) for o in twins) == 1:
                    break
            said = [f"α {run.facts.get(name)}" if name == "α" else str(run.facts.get(name)) for name in used]
            run.label = run.model + (f" · {', '.join(said)}" if said and names.count(run.model) > 1 else "")
        labels = [run.label for run in kind]
        for place, run in enumerate(kind):
            if labels.count(run.label) > 1:
                run.label = f"{labels[place]} · {Path(run.path).name if run.path else f'run {place + 1}'}"


MEAN = "mean over tasks"
CHANCE_SAYS = (
    "Band: what unrelated curves as smooth as these reach in 95 % of cases "
    "(random phase or permuted increments, whichever is wider). "
    "Thick: beyond chance by both, after Holm's correction over the metrics"
)


@dataclass
class PairCorrelations:
    """Spearman's ρ of metrics and scores: a row per readout, task, metric and sink setting.

    `chance` is what unrelated curves as smooth as these reach in 95 % of cases; `p` is adjusted for the number of metrics.
    """

    curves: int
    scores: int
    table: pd.DataFrame
    says: str = CHANCE_SAYS


def correlate(curves: Sequence[Curves], scores: Sequence[Scores]) -> list[PairCorrelations]:
    """Every profile with every evaluation of the same model."""
    return [
        PairCorrelations(c, s, _table(curve, score))
        for s, score in enumerate(scores)
        for c, curve in enumerate(curves)
        if same_model(curve, score)
    ]


def _table(curve: Curves, score: Scores) -> pd.DataFrame:
    layers = whole_layers(curve.table[curve.table["normalization"] == "raw"])
    common = sorted(set(layers["layer"]) & set(score.table["layer"]))
    metrics = {
        (str(metric), str(sink)): rows.drop_duplicates("layer").set_index("layer")["value"].reindex(common).to_numpy(float)
        for (metric, sink), rows in layers.groupby(["metric", "sink"], sort=False)
    }
    rows = []
    for readout in score.readouts:
        grid = score.grid(readout)
        targets = {MEAN: score.mean(readout)} if len(grid) > 1 else {}
        if not curve.mean_only:
            targets |= {str(task): values for task, values in grid.T.items()}
        for task, values in targets.items():
            compared = _compare(metrics, values.reindex(common).to_numpy(float))
            rows += [[readout, task, metric, sink, *compared[metric, sink]] for metric, sink in metrics]
    return pd.DataFrame(rows, columns=["readout", "task", "metric", "sink", "rho", "chance", "p", "n"])


def _compare(metrics: Mapping[tuple[str, str], Array], target: Array) -> dict[tuple[str, str], tuple[float, float, float, int]]:
    """(ρ, chance, Holm's p, layers used) of every metric with one curve of scores; not a number where it is undefined."""
    used = {key: np.isfinite(values) & np.isfinite(target) for key, values in metrics.items()}
    out = {key: (math.nan, math.nan, math.nan, int(mask.sum())) for key, mask in used.items()}
    groups: dict[bytes, list[tuple[str, str]]] = {}
    for key, mask in used.items():
        if undefined_because(metrics[key][mask], target[mask], MIN_LAYERS) is None:
            groups.setdefault(mask.tobytes(), []).append(key)
    compared: dict[tuple[str, str], tuple[float, Chance]] = {}
    for keys in groups.values():
        mask = used[keys[0]]
        xs, y = np.stack([metrics[key][mask] for key in keys]), target[mask]
        values = null_values("spearman", xs, y[None])[:, 0]
        chances = against_chance("spearman", values, xs, surrogate_curves(y))
        compared |= {key: (float(value), chance) for key, value, chance in zip(keys, values, chances, strict=True)}
    # a family is every metric under one setting of the sink; metrics that know no sink are in both, and adjusted with `keep`
    for sink in ("drop", "keep"):
        has_it = {metric for metric, own in metrics if own == sink}
        family = [key for key in compared if key[1] == sink or key[0] not in has_it]
        adjusted = holm(np.array([compared[key][1].p for key in family]))
        for key, p in zip(family, adjusted, strict=True):
            value, chance = compared[key]
            out[key] = (value, chance.limit, float(p), out[key][3])
    return out
