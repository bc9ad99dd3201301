"""What a reader must know before the numbers: warnings of the runs, and conventions that differ
between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerscope.choose.choice import Choice
from layerscope.core.readout import Readout
from layerscope.report.sources import Block, Curves, Scores, Source

# (name, what a difference means) for profiles that are drawn on the same axes
_COMPARED = {
    "final norm": "the same layer is then a different vector",
    "corpus": "the curves were measured on different texts",
    "longest text": "entropy grows with the number of tokens",
    "rows": "entropies of rows prepared differently cannot be compared",
    "α": "entropies of different order cannot be compared",
    "views": "InfoNCE, LiDAR and DiME depend on the views",
    "pooling": "the pooled vectors are not comparable",
    "other options": "the metrics are defined differently",
    "layerscope": "other versions may compute differently",
}
_COMPARED_SCORES = {
    "longest text": "texts were cut at different places",
    "length of vectors": "scores that use distances or dot products change",
    "part of each task": "the scores are over different items",
    "layerscope": "versions may compute differently",
}
_MISLEADING = (
    "could not be scored",
    "outside its bounds",
    "LiDAR:",
    "not MTEB's own",
)  # warnings that say so


@dataclass(frozen=True)
class Notice:
    """One line for the reader; `about` is the runs' label. `level` is warn (may mislead) or
    note."""

    level: str
    about: str
    text: str


def notices(
    curves: Sequence[Curves],
    scores: Sequence[Scores],
    marks: Sequence[Choice] = (),
    blocks: Sequence[Block] = (),
) -> list[Notice]:
    """Differences between runs first, then each run's own warnings; the same text about several
    runs is said once."""
    out = [
        *_differences(curves, _COMPARED, "profiles"),
        *_differences(scores, _COMPARED_SCORES, "evaluations"),
    ]
    out += _across(curves, scores)
    runs: list[Source] = [*curves, *scores, *blocks]
    said: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        for text in dict.fromkeys(run.warnings):
            said.setdefault(text, []).append(place)
    for text, places in said.items():
        about = "every run" if len(places) == len(runs) > 1 else ", ".join(_names(runs, places))
        shown = text if "_" in text.split()[0] else text[:1].upper() + text[1:]
        out.append(
            Notice("warn" if any(words in text for words in _MISLEADING) else "note", about, shown)
        )
    out += [
        Notice("note", f"the layer chosen for {mark.model}", text)
        for mark in marks
        for text in mark.warnings
        if text not in said
    ]
    return sorted(out, key=lambda n: n.level != "warn")


def _names(runs: Sequence[Source], places: Sequence[int]) -> list[str]:
    """Labels of some runs; a model's name alone where it is true of all its profiles."""
    out = []
    for place in places:
        run = runs[place]
        twins = [
            i
            for i, other in enumerate(runs)
            if other.model == run.model and type(other) is type(run)
        ]
        out.append(run.model if all(i in places for i in twins) else run.label)
    return list(dict.fromkeys(out))


def _differences(runs: Sequence[Any], compared: dict[str, str], what: str) -> list[Notice]:
    out = []
    for name, meaning in compared.items():
        values = _values(runs, name)
        if len(values) > 1:
            sides = "; ".join(
                f"{value}: {', '.join(dict.fromkeys(labels))}" for value, labels in values.items()
            )
            out.append(
                Notice("warn", f"these {what}", f"They differ in {name} ({sides}): {meaning}.")
            )
    return out


def _values(runs: Sequence[Any], name: str) -> dict[str, list[str]]:
    """The values of a convention, each with the labels of the runs that have it."""
    values: dict[str, list[str]] = {}
    for run in runs:
        value = run.facts.get(name)
        # a model without a final norm, or a run without views, has nothing to differ in
        if value is not None and value not in ("none in this model", "none"):
            values.setdefault(str(value), []).append(run.label)
    return values


def _across(curves: Sequence[Curves], scores: Sequence[Scores]) -> list[Notice]:
    """A profile and an evaluation of one model that read it differently."""
    out: dict[str, list[str]] = {}
    for score in scores:
        for curve in curves:
            if not same_model(curve, score):
                continue
            norms = {Readout.parse(readout).final_norm for readout in score.readouts}
            module = curve.facts.get("final norm")
            if module != "none in this model" and curve.final_norm not in norms:
                text = (
                    f"The metrics read states with final norm {curve.final_norm}, the scores with {', '.join(sorted(norms))}: "
                    "the same layer is not the same vector in both."
                )
                out.setdefault(text, []).append(curve.label)
    return [Notice("warn", ", ".join(dict.fromkeys(labels)), text) for text, labels in out.items()]


def same_model(one: Curves | Scores, other: Curves | Scores) -> bool:
    """Whether two runs are of the same model, by its identity, or by its name where the weights are
    not known."""
    mine, theirs = one.identity, other.identity
    if mine is not None and theirs is not None and mine.weights_sha256 and theirs.weights_sha256:
        return mine.same_as(theirs)
    return one.model == other.model


def convention_rows(runs: Sequence[Source]) -> list[dict[str, Any]]:
    """A row per convention with its value in each run, and whether they differ."""
    names = list(dict.fromkeys(name for run in runs for name in run.facts))
    rows = []
    for name in names:
        values = ["" if run.facts.get(name) is None else str(run.facts[name]) for run in runs]
        differs = any(
            len(_values([run for run in runs if isinstance(run, kind)], name)) > 1
            for kind in (Curves, Scores)
        )
        rows.append(
            {
                "name": name,
                "values": values,
                "differs": differs and (name in _COMPARED or name in _COMPARED_SCORES),
            }
        )
    return rows
