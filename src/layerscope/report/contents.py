"""What a report says: runs of any kind are opened and put together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.choose.choice import Choice
from layerscope.core.charts import Style
from layerscope.core.files import exists
from layerscope.core.runs import load_run
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.maps import LayerMap
from layerscope.report.charts import styles
from layerscope.report.headline import Headline, marks, page_headline
from layerscope.report.notices import Notice, notices
from layerscope.report.sections import sections
from layerscope.report.sources import Block, Curves, Scores, Source


@dataclass
class Report:
    """Everything a report says. `styles` are those of the curves, then of the scores."""

    curves: list[Curves]
    scores: list[Scores]
    blocks: list[Block]
    marks: list[Choice]
    notices: list[Notice]
    headline: Headline
    styles: list[Style]
    made: str

    @property
    def runs(self) -> list[Source]:
        """All of them."""
        return [*self.curves, *self.scores, *self.blocks]

    @property
    def models(self) -> list[str]:
        """Names, each once."""
        return list(dict.fromkeys(run.model for run in self.runs))


def read(given: Any) -> Source | Choice:
    """What a report shows of one thing: a folder, a run of any kind, a choice, or something that
    was read already."""
    thing: Any = given
    if isinstance(given, (str, Path)):
        is_choice = Path(given).suffix == ".json" and exists(given) and Path(given).is_file()
        thing = Choice.from_json(Path(given)) if is_choice else load_run(given)
    if isinstance(thing, (Curves, Scores, Block, Choice)):
        return thing
    if isinstance(thing, LayerMap):
        title = f"{len(thing):,} {thing.kind} at every layer of {thing.model}"
        return Block("map", title, thing.model, [title], label=thing.about, map=thing)
    kind = getattr(thing, "kind", None)
    if not isinstance(kind, str):
        raise LayerscopeError(
            f"a report cannot show a {type(thing).__name__}. Give folders of finished runs, runs, or choices of a layer."
        )
    return sections.get(kind).read(thing)


def gather(runs: Iterable[Any], texts: bool = True) -> Report:
    """Read runs of any kind (folders, runs, choices, or curves and scores from elsewhere) and work
    out what they show.

    Without `texts` nothing of what a run's items say is in it.
    """
    sources = [read(one) for one in runs]
    return _gather(sources if texts else [_without_texts(one) for one in sources])


def _without_texts(source: Source | Choice) -> Source | Choice:
    if not isinstance(source, Choice) and source.map is not None:
        source = replace(source, map=source.map.without_texts())
    if isinstance(source, Block):
        source = replace(
            source,
            tables={
                name: table for name, table in source.tables.items() if name not in source.private
            },
        )
    return source


def _gather(sources: Sequence[Source | Choice]) -> Report:
    curves = [one for one in sources if isinstance(one, Curves)]
    scores = [one for one in sources if isinstance(one, Scores)]
    blocks = [one for one in sources if isinstance(one, Block)]
    if not curves and not scores and not blocks:
        raise InvalidValueError(
            "a report needs at least one run: give the folder of a finished run."
        )
    for score in scores:
        if score.table.empty:
            raise LayerscopeError(
                f"the evaluation in {score.path} holds no scores: there is nothing to show."
            )
    _label(curves, scores, blocks)
    marked = marks(curves, scores, [one for one in sources if isinstance(one, Choice)], blocks)
    drawn = styles([(run.family, run.model) for run in curves]) + styles(
        [(run.family, run.model) for run in scores]
    )
    known = {run.model: style for run, style in zip(curves, drawn, strict=False)}
    for place, score in enumerate(
        scores, start=len(curves)
    ):  # an evaluation looks like the profile of its model
        if score.model in known:
            drawn[place] = Style(
                known[score.model].color, drawn[place].dash, known[score.model].marker
            )
    return Report(
        curves,
        scores,
        blocks,
        marked,
        notices(curves, scores, marked, blocks),
        page_headline(curves, scores, marked, blocks),
        drawn,
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )


def _label(
    curves: Sequence[Curves], scores: Sequence[Scores], blocks: Sequence[Block] = ()
) -> None:
    """Short names that tell the runs of a report apart: the model, and what differs where a model
    has several."""
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
                for name in (
                    "final norm",
                    "texts",
                    "longest text",
                    "rows",
                    "α",
                    "other options",
                    "tasks",
                    "views",
                )
                if len({str(other.facts.get(name)) for other in twins}) > 1
            ]
            # as few of them as tell this run from the others
            for most in range(len(differing) + 1):
                used = differing[:most]
                if (
                    sum(
                        all(str(o.facts.get(n)) == str(run.facts.get(n)) for n in used)
                        for o in twins
                    )
                    == 1
                ):
                    break
            said = [
                f"α {run.facts.get(name)}" if name == "α" else str(run.facts.get(name))
                for name in used
            ]
            run.label = run.model + (
                f" · {', '.join(said)}" if said and names.count(run.model) > 1 else ""
            )
        labels = [run.label for run in kind]
        for place, run in enumerate(kind):
            if labels.count(run.label) > 1:
                run.label = (
                    f"{labels[place]} · {Path(run.path).name if run.path else f'run {place + 1}'}"
                )
