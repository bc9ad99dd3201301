"""`write_report`: runs of any kind are opened and put together on one page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.choose.choice import Choice
from layerscope.core.runs import load_run, view
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.maps import LayerMap
from layerscope.report.section import Section
from layerscope.report.words import Notice, headline, notices

# The conventions that tell runs of one model apart, in this order
_DISTINCT = (
    *("final norm", "texts", "longest text", "rows", "α", "other options", "tasks", "views"),
)


@dataclass(frozen=True)
class Report:
    """The contents of a page. `choices` are the layers that it points out, by model."""

    sections: list[Section]
    choices: dict[str, Choice]
    notices: list[Notice]
    headline: list[str]
    written: str

    @property
    def models(self) -> list[str]:
        """Names, each once."""
        return list(dict.fromkeys(section.model for section in self.sections))


def read(thing: Any) -> Section | Choice:
    """Return what a report shows of a folder, a run of any kind, a map, a section or a choice."""
    if isinstance(thing, str | Path):
        is_choice = Path(thing).suffix == ".json" and Path(thing).is_file()
        thing = Choice.from_json(Path(thing)) if is_choice else load_run(thing)
    if isinstance(thing, Section | Choice):
        return thing
    if isinstance(thing, LayerMap):
        title = f"{len(thing):,} {thing.kind} at the layers of {thing.model}"
        return Section("map", title, thing.model, [title], label=thing.about, map=thing)
    kind = getattr(thing, "kind", None)
    if not isinstance(kind, str):
        raise LayerscopeError(
            f"a report cannot show a {type(thing).__name__}. Give folders of finished runs, runs, "
            "or choices of a layer."
        )
    section: Section = view(kind, "section")(thing)
    return section


def gather(runs: Iterable[Any], texts: bool = True) -> Report:
    """Read runs of any kind, and choices, and work out what they show.

    Without `texts` nothing of what a run's items say is in it.
    """
    things = [read(run) for run in runs]
    sections = [thing for thing in things if isinstance(thing, Section)]
    if not sections:
        raise InvalidValueError(
            "a report needs at least one run: give the folder of a finished run."
        )
    if not texts:
        sections = [section.without_texts() for section in sections]
    _label(sections)
    choices = _choices(sections, [thing for thing in things if isinstance(thing, Choice)])
    return Report(
        sections,
        choices,
        notices(sections, choices),
        headline(sections, choices),
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )


def _label(sections: Sequence[Section]) -> None:
    """Give runs names that tell them apart: the title, or for profiles and evaluations the model,
    and as few conventions as tell its runs of that kind apart."""
    groups: dict[tuple[str, str], list[Section]] = {}
    for section in sections:
        if section.kind in ("profile", "evaluation"):
            groups.setdefault((section.kind, section.model), []).append(section)
        else:
            section.label = section.label or section.title
    for (_, model), runs in groups.items():
        labels = [model] * len(runs)
        for name in _DISTINCT:
            values = [str(run.facts.get(name)) for run in runs]
            if len(set(labels)) < len(runs) and len(set(values)) > 1:
                labels = [f"{text} · {value}" for text, value in zip(labels, values, strict=True)]
        for place, (run, label) in enumerate(zip(runs, labels, strict=True), 1):
            path = getattr(run.run, "path", None)
            name = Path(path).name if path else f"run {place}"
            run.label = f"{label} · {name}" if labels.count(label) > 1 else label


def _choices(sections: Sequence[Section], choices: Sequence[Choice]) -> dict[str, Choice]:
    """Return one choice per model: one that was given, an improvement's, or the one that its
    evaluation or profile leads to."""
    models = {section.model: section.blocks for section in sections if section.blocks}
    by_model: dict[str, Choice] = {}
    for choice in choices:
        model = choice.model or next(iter(models))
        if model not in models:
            raise LayerscopeError(
                f"the choice is for {model}, which is not among these runs: {', '.join(models)}."
            )
        by_model.setdefault(model, choice)
    # the applied final norm hides the valley that rules without labels look at
    for section in sorted(
        sections,
        key=lambda s: (not s.first, s.kind == "profile", s.facts.get("final norm") == "applied"),
    ):
        if section.choice is not None:
            by_model.setdefault(section.model, section.choice)
    return {
        model: replace(choice, model=model, layers=models[model])
        for model, choice in by_model.items()
    }
