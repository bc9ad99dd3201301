"""Every sentence of the report and of the tables in the terminal; numbers and curves as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from layerscope.choose.choice import Choice
from layerscope.core.columns import lowest_and_highest
from layerscope.core.options import count_of
from layerscope.maps import TRUSTED, LayerMap
from layerscope.profiling.run import entropy_valley
from layerscope.report.section import Section
from layerscope.terminal import headed_table

__all__ = ["curve_ends", "number", "numeric_table", "sparkline"]

MEAN = "mean over tasks"
PICKED = (
    "the best layer was picked on these items, so its gain is too high; `layerscope select` says "
    "what can be promised"
)
NO_VALLEY = (
    "Prompt entropy has no valley: no dip is clear of noise and at least 5 % below both its "
    "shoulders."
)
UNDEFINED = "undefined at every layer"
READOUTS_SAY = "Every row is a way to read a text. A dot: cannot be told from the best."
COSTS_SAY = (
    "Every point is a layer under a readout. The line: candidates that none beats at the same cost "
    "or less. Rings: cannot be told from the best."
)
PROBES_SAY = (
    "Bands are 95 % intervals. Layers are chosen on validation items and judged on test items."
)
NEIGHBORS = "Five of the texts, drawn at random, with their nearest neighbors"

# Conventions in which runs of one kind cannot be compared if they differ
_COMPARED = {
    "profile": (
        *("final norm", "corpus", "longest text", "rows", "α", "views", "pooling"),
        *("other options", "layerscope"),
    ),
    "evaluation": ("longest text", "length of vectors", "part of each task", "layerscope"),
}
_ABSENT = ("none in this model", "none")  # such a run has nothing to differ in
_BARS = "▁▂▃▄▅▆▇█"
_WORDS = ("metric", "verdict", "site", "first → last", "embed → last layer", "layer 0 → last")


@dataclass(frozen=True)
class Notice:
    """One line for the reader; `about` names runs. `level` is warn (may mislead) or note."""

    level: str
    about: str
    text: str


def headline(sections: Sequence[Section], choices: Mapping[str, Choice]) -> list[str]:
    """Return the sentences at the top of the page: a model after the other, improvements first,
    then the largest expected gain."""
    models: dict[str, list[Section]] = {}
    answers = []
    for section in sections:
        if section.lead or section.kind in _COMPARED:
            models.setdefault(section.model, []).append(section)
        elif section.words:
            title = f"{section.title}: " if len(sections) > 1 else ""
            answers.append(title + section.words[0])

    def rank(model: str) -> tuple[bool, bool, float]:
        choice = choices.get(model)
        gain = 0.0 if choice is None else choice.expected_gain or 0.0
        is_scored = any(section.kind == "evaluation" for section in models[model])
        return not any(section.lead for section in models[model]), not is_scored, -gain

    sentences = []
    for model in sorted(models, key=rank):
        of_model = _model_sentences(models[model], choices.get(model))
        if len(models) > 1 and of_model and model not in of_model[0]:
            of_model[0] = f"{model}: {of_model[0]}"
        sentences += of_model
    sentences += answers
    if not sentences:
        names = ", ".join(dict.fromkeys(section.model for section in sections))
        sentences = [f"{names}: no metric here has a headline of its own; the curves are below."]
    return [text if text.startswith(tuple(models)) else _sentence(text) for text in sentences]


def _model_sentences(sections: Sequence[Section], choice: Choice | None) -> list[str]:
    """Return what the sections of one model say: the choice, and the valley that explains it."""
    sentences = [text for section in sections for text in section.lead]
    scores = [section for section in sections if section.kind == "evaluation"]
    profiles = [section for section in sections if section.kind == "profile"]
    is_decided = bool(sentences) or choice is None
    if choice is not None and not is_decided and scores:
        words = replace(choice, model="").headline().removesuffix(".")
        tasks = [task for task in scores[0].rows["task"].unique() if task != MEAN]
        average = f"on average over {len(tasks)} tasks"
        sentences.append(f"{words}, {f'on {tasks[0]}' if len(tasks) == 1 else average}")
        if choice.abstained and choice.reason:
            sentences.append(choice.reason)
    valleys = [(entropy_valley(profile.rows), profile) for profile in profiles]
    found = [(valley, profile) for valley, profile in valleys if valley is not None]
    if found:
        valley, profile = max(found, key=lambda pair: pair[0].depth)
        norms = {section.facts.get("final norm") for section in profiles}
        norm = "" if len(norms) == 1 else f"With final norm {profile.facts['final norm']}: "
        sentences.append(f"{norm}{valley.sentence()}")
    elif not sentences and any("prompt_entropy" in set(p.rows["metric"]) for p in profiles):
        sentences.append(NO_VALLEY)
    if choice is not None and not is_decided and not scores:
        sentences.append(f"Without labels: {replace(choice, model='').headline()}")
    return sentences


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop; a model's name stays as it is."""
    word = text.split(maxsplit=1)[0]
    capital = text[:1].upper() + text[1:] if word.isalpha() and word.islower() else text
    return f"{capital.removesuffix('.')}."


def notices(sections: Sequence[Section], choices: Mapping[str, Choice]) -> list[Notice]:
    """Return differences between runs first, then each run's own warnings, each text once."""
    lines = []
    for kind, names in _COMPARED.items():
        runs = [section for section in sections if section.kind == kind]
        for name in names:
            values = _values(runs, name)
            if len(values) > 1:
                sides = "; ".join(f"{v}: {', '.join(labels)}" for v, labels in values.items())
                text = f"They differ in {name} ({sides}): their numbers cannot be compared."
                lines.append(Notice("warn", f"these {kind}s", text))
    about: dict[str, list[str]] = {}
    for section in sections:
        for text in dict.fromkeys(section.warnings):
            about.setdefault(text, []).append(section.label)
    for model, choice in choices.items():
        for text in choice.warnings:
            about.setdefault(text, [f"the layer chosen for {model}"])
    for text, labels in about.items():
        is_of_all = len(labels) == len(sections) > 1
        shown = text if "_" in text.split()[0] else text[:1].upper() + text[1:]
        names_of_runs = "every run" if is_of_all else ", ".join(dict.fromkeys(labels))
        lines.append(Notice("note", names_of_runs, shown))
    return lines


def _values(runs: Sequence[Section], name: str) -> dict[str, list[str]]:
    """Return the values of a convention, each with the labels of the runs that have it."""
    values: dict[str, list[str]] = {}
    for run in runs:
        value = run.facts.get(name)
        if value is not None and value not in _ABSENT:
            values.setdefault(str(value), []).append(run.label)
    return values


def conventions(sections: Sequence[Section]) -> pd.DataFrame:
    """Return a row per convention with its value in each run, and whether they differ."""
    names = dict.fromkeys(name for section in sections for name in section.facts)
    rows = []
    for name in names:
        differs = any(
            name in compared and len(_values([s for s in sections if s.kind == kind], name)) > 1
            for kind, compared in _COMPARED.items()
        )
        facts = [section.facts.get(name) for section in sections]
        values = ["" if fact is None else str(fact) for fact in facts]
        rows.append({"name": name, "values": values, "differs": differs})
    return pd.DataFrame(rows, columns=["name", "values", "differs"])


def map_note(layer_map: LayerMap) -> str:
    """Return why a map is not shown; empty for one that is."""
    if any(reading.is_trusted for reading in layer_map.readings):
        return ""
    reading = layer_map.readings[-1]
    trust = reading.trust[reading.layers.index(reading.at)]
    return (
        f"The map is left out: at layer {reading.at} the trustworthiness of its picture is "
        f"{trust:.2f}. Below {TRUSTED}, points that look near need not be near."
    )


def describe_prompts(manifest: Mapping[str, Any]) -> str:
    """Return how many prompts a profile has and how long they are."""
    counts = manifest["counts"]
    conventions = manifest["conventions"]
    if "items" not in conventions:
        prompts = count_of(counts["prompts"], "prompts")
        return f"{prompts}, up to {conventions['max_length']} tokens"
    manner = str(conventions["tokens"]).partition(",")[0]
    items = count_of(counts["prompts"], conventions["items"])
    return f"{items} of {token_count(counts)} tokens ({manner})"


def token_count(counts: Mapping[str, Any]) -> str:
    """Return the number of tokens of items, or its range."""
    shortest = counts["tokens"]["shortest"]
    longest = counts["tokens"]["longest"]
    return f"{longest}" if shortest == longest else f"{shortest} to {longest}"


def probe_sentence(facts: Mapping[str, Any]) -> str:
    """Return the layer that the validation items choose for one probe, judged on test items."""
    chosen = facts["chosen_layer"]
    highest = f"highest at layer {facts['best_layer']} ({percent(facts['best'])})"
    if chosen == facts["last_layer"]:
        last = percent(facts["last"])
        return f"{highest}; the validation items choose the last layer: {last}."
    low, high = facts["gain_ci"]
    verdict = "not surely better than"
    if low > 0:
        verdict = "better than"
    elif high < 0:
        verdict = "worse than"
    return (
        f"{highest}; the validation items choose layer {chosen}: {percent(facts['chosen'])}, "
        f"{verdict} the last layer's {percent(facts['last'])} ({100 * facts['gain']:+.1f}, "
        f"{100 * low:+.1f} to {100 * high:+.1f})."
    )


def percent(share: float) -> str:
    """Return a share in percent, without the sign."""
    return f"{100 * share:.1f}"


def number(value: float) -> str:
    """Return a number with as many digits as a reader needs."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if 0 < size < 0.01:
        return f"{value:.1e}"
    digits = 2
    if size >= 100:
        digits = 0
    elif size >= 10:
        digits = 1
    elif 0 < size < 0.1:
        digits = 3
    return f"{value:.{digits}f}"


def curve_ends(layers: Any, values: Any) -> list[str]:
    """Return the lowest and the highest value of a curve, each with its layer.

    >>> curve_ends([0, 1, 2], [1.5, float("nan"), 0.25])
    ['0.25 @ 2', '1.50 @ 0']
    """
    ends = lowest_and_highest(layers, values).values()
    return [f"{number(end['value'])} @ {end['layer']}" for end in ends] or ["–", "–"]


def sparkline(values: Any, most: int | None = None) -> str:
    """Return a curve in one line of text, with gaps where a value is undefined.

    Of more than `most` values some are drawn, evenly spread, ends included.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    curve = np.asarray(values, dtype=float)
    if most is not None and len(curve) > most:
        curve = curve[np.linspace(0, len(curve) - 1, most).round().astype(int)]
    finite = curve[np.isfinite(curve)]
    if not len(finite):
        return " " * len(curve)
    low = finite.min()
    span = finite.max() - low
    heights = (curve - low) / span * 7 if span else np.where(np.isfinite(curve), 3, np.nan)
    return "".join(_BARS[round(h)] if math.isfinite(h) else " " for h in heights)


def numeric_table(*headings: str, words: Sequence[str] = ()) -> Table:
    """Return a table with numbers to the right and whole; `words` names columns that may fold."""
    table = headed_table()
    for heading in headings:
        is_text = heading in words or heading in _WORDS
        table.add_column(
            heading,
            justify="left" if is_text else "right",
            no_wrap=heading not in words,
            overflow="fold",
        )
    return table
