"""Every sentence of the report and of the tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from layerscope.choose.choice import Choice
from layerscope.core.formatting import count_of
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.maps import LayerMap
from layerscope.maps.layout import TRUSTED
from layerscope.profiling.run import EntropyValley, entropy_valley
from layerscope.report.section import Section

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
SCORES_SAY = (
    "Color: points gained over the last layer. An outline: the best layer of a task. A dot: a layer "
    "that cannot be told from it."
)
READOUTS_SAY = "Every row is a way to read a text. A dot: cannot be told from the best."
COSTS_SAY = (
    "Every point is a layer under a readout. The line: candidates that none beats at the same cost "
    "or less. Rings: cannot be told from the best."
)
PROBES_SAY = (
    "Bands are 95 % intervals. Layers are chosen on validation items and judged on test items."
)
NEIGHBORS = "Five of the texts, drawn at random, with their nearest neighbors"
ABOUT = "What the texts are about, by their distinctive words"
OUTLIERS = "Outliers, and pairs nearest to being duplicates"

# Conventions in which runs of one kind may differ, with what a difference means
_COMPARED = {
    "profile": {
        "final norm": "the same layer is then a different vector",
        "corpus": "the curves were measured on different texts",
        "longest text": "entropy grows with the number of tokens",
        "rows": "entropies of rows prepared differently cannot be compared",
        "α": "entropies of different order cannot be compared",
        "views": "InfoNCE, LiDAR and DiME depend on the views",
        "pooling": "the pooled vectors are not comparable",
        "other options": "the metrics are defined differently",
        "layerscope": "other versions may compute differently",
    },
    "evaluation": {
        "longest text": "texts were cut at different places",
        "length of vectors": "scores that use distances or dot products change",
        "part of each task": "the scores are over different items",
        "layerscope": "versions may compute differently",
    },
}
_ABSENT = ("none in this model", "none")  # such a run has nothing to differ in
_MISLEADING = ("could not be scored", "outside its bounds", "LiDAR:", "not MTEB's own")


@dataclass(frozen=True)
class Notice:
    """One line for the reader; `about` names runs. `level` is warn (may mislead) or note."""

    level: str
    about: str
    text: str


# The headline


def headline(sections: Sequence[Section], choices: Mapping[str, Choice]) -> list[str]:
    """Return the sentences at the top of the page: a model after the other, improvements first."""
    models: dict[str, list[Section]] = {}
    answers = []
    for section in sections:
        if section.lead or section.kind in _COMPARED:
            models.setdefault(section.model, []).append(section)
        elif section.words:
            answers.append(section)
    groups = sorted(models, key=lambda model: _rank(models[model], choices.get(model)))
    several = len(groups) > 1
    sentences = []
    for model in groups:
        of_model = _model_sentences(models[model], choices.get(model))
        if several and of_model and model not in of_model[0]:
            of_model[0] = f"{model}: {of_model[0]}"
        sentences += of_model
    is_alone = not sentences and len(answers) == 1
    sentences += [
        section.words[0] if is_alone else f"{section.title}: {section.words[0]}"
        for section in answers
    ]
    if not sentences:
        names = ", ".join(dict.fromkeys(section.model for section in sections))
        sentences = [f"{names}: no metric here has a headline of its own; the curves are below."]
    return [text if text.startswith(tuple(models)) else _sentence(text) for text in sentences]


def _rank(sections: Sequence[Section], choice: Choice | None) -> tuple[bool, bool, float]:
    """Return a sort key: improvements, then scores by the expected gain, then profiles."""
    is_improved = any(section.lead for section in sections)
    is_scored = any(section.kind == "evaluation" for section in sections)
    gain = 0.0 if choice is None or choice.expected_gain is None else choice.expected_gain
    return not is_improved, not is_scored, -gain


def _model_sentences(sections: Sequence[Section], choice: Choice | None) -> list[str]:
    """Return what the sections of one model say: the choice, and the valley that explains it."""
    sentences = [text for section in sections for text in section.lead]
    scores = [section for section in sections if section.kind == "evaluation"]
    profiles = [section for section in sections if section.kind == "profile"]
    if choice is not None and sentences and scores:
        sentences += _measured(scores[0], choice)
    elif choice is not None and scores:
        words = _choice_words(choice)
        sentences.append(f"{words}, {_over_tasks(scores[0])}")
        if choice.abstained and choice.reason:
            sentences.append(choice.reason)
    valley = _valley(profiles)
    if valley is not None:
        sentences.append(valley)
    elif not sentences and any("prompt_entropy" in set(p.rows["metric"]) for p in profiles):
        sentences.append("Prompt entropy has no valley")
    if choice is not None and profiles and not scores and not any(s.lead for s in sections):
        sentences.append(f"Without labels: {_choice_words(choice)}")
    return sentences


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop; a model's name stays as it is."""
    word = text.split(maxsplit=1)[0]
    capital = text[:1].upper() + text[1:] if word.isalpha() and word.islower() else text
    return f"{capital.removesuffix('.')}."


def _choice_words(choice: Choice) -> str:
    return replace(choice, model="").headline().removesuffix(".")


def _over_tasks(scores: Section) -> str:
    tasks = [task for task in scores.rows["task"].unique() if task != MEAN]
    return f"on {tasks[0]}" if len(tasks) == 1 else f"on average over {len(tasks)} tasks"


def _measured(scores: Section, choice: Choice) -> list[str]:
    """Return the score of a choice that was made without these scores, beside the baseline's."""
    readout = str(choice.readout)
    rows = scores.rows[scores.rows["task"] == scores.rows["task"].iloc[0]]
    if readout not in set(rows["readout"]):
        return [
            f"{scores.label} was not scored under {readout}: its scores say nothing about this choice"
        ]
    chosen = rows[(rows["readout"] == readout) & (rows["layer"] == choice.layer)]["score"]
    last = rows[(rows["readout"] == DEFAULT_READOUT) & (rows["layer"] == rows["layer"].max())]
    if not len(chosen) or not len(last):
        return []
    return [
        f"measured {_over_tasks(scores)}: {chosen.iloc[0]:.1f}, against "
        f"{last['score'].iloc[0]:.1f} at the last layer under {DEFAULT_READOUT}"
    ]


def _valley(profiles: Iterable[Section]) -> str | None:
    """Return the sentence on the deepest valley among the profiles of a model."""
    valleys: list[tuple[EntropyValley, Section]] = []
    for profile in profiles:
        valley = entropy_valley(profile.rows)
        if valley is not None:
            valleys.append((valley, profile))
    if not valleys:
        return None
    deepest, profile = max(valleys, key=lambda pair: pair[0].depth)
    if len({section.facts.get("final norm") for section in profiles}) == 1:
        return deepest.sentence()
    return f"With final norm {profile.facts['final norm']}: {deepest.sentence()}"


# Notices


def notices(sections: Sequence[Section], choices: Mapping[str, Choice]) -> list[Notice]:
    """Return differences between runs first, then each run's own warnings, each text once."""
    lines = []
    for kind, meanings in _COMPARED.items():
        runs = [section for section in sections if section.kind == kind]
        for name, meaning in meanings.items():
            values = _values(runs, name)
            if len(values) > 1:
                sides = "; ".join(f"{v}: {', '.join(names)}" for v, names in values.items())
                text = f"They differ in {name} ({sides}): {meaning}."
                lines.append(Notice("warn", f"these {kind}s", text))
    lines += _different_vectors(sections)
    about: dict[str, list[Section]] = {}
    for section in sections:
        for text in dict.fromkeys(section.warnings):
            about.setdefault(text, []).append(section)
    for text, runs in about.items():
        names = ", ".join(dict.fromkeys(run.label for run in runs))
        if len(runs) == len(sections) > 1:
            names = "every run"
        level = "warn" if any(words in text for words in _MISLEADING) else "note"
        shown = text if "_" in text.split()[0] else text[:1].upper() + text[1:]
        lines.append(Notice(level, names, shown))
    for model, choice in choices.items():
        for text in choice.warnings:
            if text not in about:
                lines.append(Notice("note", f"the layer chosen for {model}", text))
    return sorted(lines, key=lambda line: line.level != "warn")


def _values(runs: Sequence[Section], name: str) -> dict[str, list[str]]:
    """Return the values of a convention, each with the labels of the runs that have it."""
    values: dict[str, list[str]] = {}
    for run in runs:
        value = run.facts.get(name)
        if value is not None and value not in _ABSENT:
            values.setdefault(str(value), []).append(run.label)
    return values


def _different_vectors(sections: Sequence[Section]) -> list[Notice]:
    """Return where a profile and an evaluation of one model read it differently."""
    lines = []
    for profile in sections:
        norm = profile.facts.get("final norm")
        if profile.kind != "profile" or norm in _ABSENT:
            continue
        for scores in sections:
            if scores.kind != "evaluation" or scores.model != profile.model:
                continue
            norms = {Readout.parse(name).final_norm for name in scores.rows["readout"].unique()}
            if norm not in norms:
                text = (
                    f"The metrics read states with final norm {norm}, the scores with "
                    f"{', '.join(sorted(norms))}: the same layer is not the same vector in both."
                )
                lines.append(Notice("warn", profile.label, text))
    return lines


def conventions(sections: Sequence[Section]) -> pd.DataFrame:
    """Return a row per convention with its value in each run, and whether they differ."""
    names = list(dict.fromkeys(name for section in sections for name in section.facts))
    rows = []
    for name in names:
        differs = any(
            name in meanings and len(_values([s for s in sections if s.kind == kind], name)) > 1
            for kind, meanings in _COMPARED.items()
        )
        facts = [section.facts.get(name) for section in sections]
        values = ["" if fact is None else str(fact) for fact in facts]
        rows.append({"name": name, "values": values, "differs": differs})
    return pd.DataFrame(rows, columns=["name", "values", "differs"])


# Single runs


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
    shortest, longest = counts["tokens"]["shortest"], counts["tokens"]["longest"]
    return f"{longest}" if shortest == longest else f"{shortest} to {longest}"


def weights(model: Mapping[str, Any]) -> str:
    """Return the weights that a run read, in a few words."""
    sha = str(model.get("weights_sha256") or "")[:12]
    stored = model.get("quantization")
    words = f"quantized ({stored})" if stored else "as published"
    return f"{words}, {sha}" if sha else words


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
