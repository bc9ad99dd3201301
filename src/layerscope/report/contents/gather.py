"""From runs to the contents of a report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerscope.errors import LayerscopeError
from layerscope.report.contents.correlate import Correlations, correlate
from layerscope.report.contents.load import load_any
from layerscope.report.contents.marks import marks
from layerscope.report.contents.notices import Notice, notices
from layerscope.report.contents.sources import Curves, Mark, Scores, from_evaluation, from_run
from layerscope.report.figures.palette import Style, styles
from layerscope.report.headline import Headline, headline


@dataclass
class Report:
    """Everything a report says. `styles` are those of the curves, then of the scores."""

    curves: list[Curves]
    scores: list[Scores]
    marks: list[Mark]
    correlations: list[Correlations]
    notices: list[Notice]
    headline: Headline
    styles: list[Style]
    made: str
    live: dict[str, Any] | None = field(default=None)

    @property
    def runs(self) -> list[Curves | Scores]:
        """All of them."""
        return [*self.curves, *self.scores]

    @property
    def models(self) -> list[str]:
        """Names, each once."""
        return list(dict.fromkeys(run.model for run in self.runs))


def gather(runs: Iterable[Any], live: dict[str, Any] | None = None) -> Report:
    """Read runs (folders, `Run`s, `Evaluation`s, choices, or curves and scores made elsewhere) and work out what they show."""
    curves: list[Curves] = []
    scores: list[Scores] = []
    choices: list[Any] = []
    for given in runs:
        run: Any = load_any(given) if isinstance(given, (str, Path)) else given
        if hasattr(run, "scores") and hasattr(run, "gains"):
            run = from_evaluation(run)
        elif hasattr(run, "table") and hasattr(run, "prompts"):
            run = from_run(run)
        elif hasattr(run, "rule") and hasattr(run, "layer"):
            choices.append(run)
            continue
        (curves if isinstance(run, Curves) else scores).append(run)
    if not curves and not scores:
        raise LayerscopeError("a report needs at least one run: give folders written by profile or evaluate.")
    for score in list(scores):
        if score.table.empty:
            raise LayerscopeError(f"the evaluation in {score.path} holds no scores: there is nothing to show.")
    _label(curves, scores)
    found = marks(curves, scores, choices)
    drawn = styles([(run.family, run.model) for run in curves]) + styles([(run.family, run.model) for run in scores])
    known = {run.model: style for run, style in zip(curves, drawn, strict=False)}
    for place, score in enumerate(scores, start=len(curves)):  # an evaluation looks like the profile of its model
        if score.model in known:
            drawn[place] = Style(known[score.model].colour, drawn[place].dash, known[score.model].marker)
    return Report(
        curves,
        scores,
        found,
        correlate(curves, scores),
        notices(curves, scores, found),
        headline(curves, scores, found),
        drawn,
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        live,
    )


def _label(curves: Sequence[Curves], scores: Sequence[Scores]) -> None:
    """Short names that tell the runs of a report apart: the model, and what differs where a model has several."""
    kinds: list[Sequence[Curves | Scores]] = [curves, scores]
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
