"""`compare_models`: several models on the user's texts, today and improved, and in plain words
which of them to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.command import Command
from layerscope.core.candidates import DRAWS, ScoredCandidates
from layerscope.core.heads import unit
from layerscope.core.statistics import bootstrap_weights, spearman
from layerscope.embedding.encoders import open_encoder
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.improving import improve
from layerscope.improving.holding import texts_per_second
from layerscope.improving.sample import draw_sample, knows_language
from layerscope.models import LoadedModel
from layerscope.models.load import find_source
from layerscope.selection.judges.agreement import Neighborhoods, similarities
from layerscope.selection.labels.read import Labeled, read_labels

TODAY, BETTER = "today", "improved"
JUDGE = "minilm-l6"
_TIMED, _CLEARLY = 24, 1.5  # texts; times as fast: less is no reason to take what scores lower
_READY = "trained for embeddings, and such an encoder beat improved small models on average, not everywhere (docs/comparison.md)"


@dataclass
class ModelComparison:
    """What `compare_models` returns: a row per model and way to read it, who agrees with whom, and
    the verdict."""

    table: pd.DataFrame
    agreement: pd.DataFrame
    verdict: str
    notes: list[str] = field(default_factory=list)
    measure: str = ""
    pick: dict[str, str] = field(default_factory=dict)
    """The model that the verdict names, as it was given, and how it is read."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {
            "table": self.table.to_dict(orient="records"),
            "agreement": self.agreement.to_dict(),
        }
        return {
            "verdict": self.verdict,
            "measure": self.measure,
            "pick": self.pick,
            **rows,
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        return f"{self.verdict}\n\n{self.table.to_string(index=False)}"


@dataclass
class _Way:
    model: str
    way: str
    encode: Callable[[Sequence[str]], np.ndarray]
    parameters: float
    ready: bool = False  # read as it comes
    trained: bool = False  # for embeddings, and it knows the language
    vectors: np.ndarray | None = None
    items: np.ndarray | None = None
    given: str = ""

    @property
    def name(self) -> str:
        return self.model if self.ready else f"{self.model}, {self.way}"

    @property
    def read(self) -> str:
        return "as it comes" if self.ready else self.way


def compare_models(
    models: Sequence[Any],
    data: Any,
    *,
    labels: str | Path | None = None,
    column: str | None = None,
    encoding: str | None = None,
    sample: int = 600,
    improved: bool = True,
    seed: int = 0,
    offline: bool = False,
    **options: Any,
) -> ModelComparison:
    """Compare models on your texts: what they agree on, how they do by labels, what they cost, and
    which to use.

    Language models are read as they are today (last layer, mean of the tokens) and as `improve`
    reads them, fitted on one half of a sample of the texts; everything is compared on the other
    half. Sentence encoders are read as they come. `labels` is a file of labeled examples, as for
    `improve`; texts of it are never fitted on.

        layerscope.compare_models(["smollm2-135m", "minilm-l6"], "mine.csv", labels="some.csv").verdict
    """
    if len(models) < 2:
        raise InvalidValueError("a comparison takes two models or more.")
    ways: dict[str, Any] = {
        name: options.pop(name)
        for name in ("model_options", "engine", "progress")
        if name in options
    }
    command = Command("compare_models", options, **ways, offline=offline, function=compare_models)
    labeled = None if labels is None else read_labels(labels)
    drawn = draw_sample(
        data, column=column, encoding=encoding, size=sample, seed=seed, offline=offline
    )
    known = set() if labeled is None else {text.strip() for text in labeled.texts}
    half = len(drawn.texts) // 2
    seen = [text for text in drawn.texts[:half] if text.strip() not in known]
    unseen = [text for text in drawn.texts[half:] if text.strip() not in known]
    if min(len(seen), len(unseen)) < 20:
        raise LayerscopeError(
            f"{drawn.name} has {len(seen) + len(unseen)} texts that are not among the labels; 40 at least are needed."
        )
    found: list[_Way] = []
    notes: list[str] = [] if labeled is None else list(labeled.warnings)
    with command:
        names = [
            find_source(one, offline, command.loading).name
            if isinstance(one, str | Path)
            else getattr(one, "name", str(i))
            for i, one in enumerate(models)
        ]
        if len(set(names)) < len(names):  # before any of them is improved, which takes long
            raise InvalidValueError(
                f"two models have the same name: {', '.join(names)}. Give each once."
            )
        for given in models:
            found += _ways_of(command, given, seen if improved else None, unseen, notes, seed)
        command.bar.begin("reading|texts", len(found) * (len(unseen) + len(known)))
        for one in found:
            one.vectors = one.encode(unseen)
            if labeled is not None:
                one.items = label_items(
                    labeled, dict(zip(labeled.texts, one.encode(labeled.texts), strict=True))
                )
            command.bar.advance(len(unseen) + len(known))
        speeds = texts_per_second({one.name: one.encode for one in found}, unseen[:_TIMED])
    matrix = _agreement(found)
    others = [
        float(np.mean([matrix.at[one.name, two.name] for two in found if two.model != one.model]))
        for one in found
    ]
    rows = {
        "model": [one.model for one in found], "read": [one.read for one in found],
        "agreement with others": others, "texts per second": [speeds[one.name] for one in found],
        "parameters, M": [one.parameters / 1e6 for one in found], "vector": [one.vectors.shape[1] for one in found],  # type: ignore[union-attr]
    }  # fmt: skip
    measure = ""
    if labeled is not None:
        measure = (
            "right nearest neighbor, %"
            if labeled.kind == "classification"
            else "rank correlation with your scores × 100"
        )
        rows = {
            **dict(list(rows.items())[:2]),
            measure: _scored(found, labeled).score.tolist(),
            **dict(list(rows.items())[2:]),
        }
    table = pd.DataFrame(rows).sort_values(
        measure or "agreement with others", ascending=False, ignore_index=True
    )
    pick, verdict = (
        _by_labels(found, labeled, speeds)
        if labeled is not None
        else _without_labels(found, others, speeds)
    )
    return ModelComparison(
        table,
        matrix,
        verdict,
        notes,
        measure,
        {"model": pick.given or pick.model, "read": pick.read},
    )


def _ways_of(
    command: Command,
    given: Any,
    seen: Sequence[str] | None,
    unseen: Sequence[str],
    notes: list[str],
    seed: int,
) -> list[_Way]:
    """How a model is read: as it comes, or today and improved."""
    loaded: LoadedModel = command.load(given, here=True)
    who, size = loaded.name, loaded.identity["parameters"]
    ready = bool(loaded.identity.get("sentence_encoder")) and not loaded.identity.get("untrained")
    encoder, knows = (
        open_encoder(command, given if ready else loaded),
        knows_language(loaded, unseen[:200]),
    )
    if not knows:
        notes.append(f"{who} does not know many words of these texts: another language?")

    def today(texts: Sequence[str]) -> np.ndarray:
        return encoder.vectors(command.engine, texts, lambda n: None)[0]

    as_it_is = _Way(
        who, TODAY, today, size, ready, ready and knows and not loaded.identity.get("exported")
    )
    as_it_is.given = str(given) if isinstance(given, str | Path) else ""
    if ready or seen is None:
        return [as_it_is]
    ways: dict[str, Any] = {"judge": "none"} if who == JUDGE else {}  # no model judges itself
    better = improve(loaded, seen, seed=seed, offline=command.offline, progress=command.bar, **ways)
    notes += [f"{who}: {note}" for note in better.warnings]
    if better.choice.abstained:
        notes.append(f"{who}: no better reading was found on these texts ({better.choice.reason})")
        return [as_it_is]
    gone = sum(
        p.numel()
        for block in list(loaded.anatomy.blocks)[better.choice.layer :]
        for p in block.parameters()
    )
    if JUDGE in str((better.manifest.get("evidence") or {}).get("judge")):
        notes.append(
            f"{who}, improved, was fitted to agree with {JUDGE}: that the two agree says little"
        )
    return [as_it_is, _Way(who, BETTER, better.encode, size - gone, given=as_it_is.given)]


def label_items(labeled: Labeled, vectors: Mapping[str, np.ndarray]) -> np.ndarray:
    """What each labeled example says of vectors: whether its nearest neighbor has its class; of
    pairs, their cosine."""
    sides = [unit(np.stack([vectors[text] for text in side])) for side in labeled.sides]
    if len(sides) == 2:
        return (sides[0] * sides[1]).sum(1)
    cosines = sides[0] @ sides[0].T
    np.fill_diagonal(cosines, -np.inf)
    return (labeled.targets[cosines.argmax(1)] == labeled.targets).astype(np.float64)


def _scored(found: Sequence[_Way], labeled: Labeled) -> ScoredCandidates:
    """The score of every way, × 100, and the same on resampled examples."""
    items = np.stack([one.items for one in found])  # type: ignore[misc]
    weights = bootstrap_weights(items.shape[1], DRAWS, 0)
    if labeled.kind == "classification":
        return ScoredCandidates(100 * items.mean(1), 100 * items @ weights.T / items.shape[1])
    return ScoredCandidates(
        100 * spearman(items, labeled.targets), 100 * spearman(items, labeled.targets, weights)
    )


def _agreement(found: Sequence[_Way]) -> pd.DataFrame:
    """The mean agreement about neighbors (−½ to 1) of every two ways."""
    cosines = [similarities(one.vectors) for one in found]  # type: ignore[arg-type]
    near = [Neighborhoods.of(one) for one in cosines]
    values = np.array([[float(a.agreement(b).mean()) for b in cosines] for a in near])
    names = [one.name for one in found]
    return pd.DataFrame((values + values.T) / 2, index=names, columns=names)


def _faster(one: _Way, other: _Way, speeds: Mapping[str, float]) -> str:
    ratio = speeds[one.name] / speeds[other.name]
    return (
        f"{ratio:.1f} × as fast as {other.name}"
        if ratio >= 1
        else f"{1 / ratio:.1f} × slower than {other.name}"
    )


def _by_labels(
    found: Sequence[_Way], labeled: Labeled, speeds: Mapping[str, float]
) -> tuple[_Way, str]:
    """The best by labels; of those that the labels cannot tell from it, the fastest if it is
    clearly faster."""
    scored = _scored(found, labeled)
    score = {one.name: value for one, value in zip(found, scored.score, strict=True)}
    ranked = [
        found[i]
        for i in np.argsort(-np.nan_to_num(scored.score, nan=-np.inf), kind="stable").tolist()
    ]
    best, tied = ranked[0], [found[i] for i in np.flatnonzero(scored.tied()).tolist()]
    quick = [one for one in tied if speeds[one.name] >= _CLEARLY * speeds[best.name]]
    pick = max(quick or [best], key=lambda one: speeds[one.name])
    what = {"classification": "% of the labeled texts have a right nearest neighbor"}.get(
        labeled.kind, "rank correlation × 100"
    )
    said = f"Use {pick.name}: {score[pick.name]:.1f} {what}"
    if pick is not best:
        said += f", the best within the noise ({best.name} has {score[best.name]:.1f})"
        return pick, f"{said}; it is {_faster(pick, best, speeds)}."
    rest = next(one for one in ranked if one.model != pick.model)
    tie = ", which these labels cannot tell from it" if any(one is rest for one in tied) else ""
    return (
        pick,
        f"{said}; {rest.name} has {score[rest.name]:.1f}{tie}. It is {_faster(pick, rest, speeds)}.",
    )


def _without_labels(
    found: Sequence[_Way], others: Sequence[float], speeds: Mapping[str, float]
) -> tuple[_Way, str]:
    """A trained encoder first; else the one that the others agree with most. Agreement does not say
    who is right."""
    if not (trained := [one for one in found if one.trained]):
        pick = found[int(np.argmax(others))]
        return (
            pick,
            f"Use {pick.name}: the others agree with it most. Agreement does not say who is right: give labels= to know.",
        )
    pick = max(trained, key=lambda one: speeds[one.name])
    rest = max(
        (one for one in found if one.model != pick.model),
        key=lambda one: (one.way == BETTER, speeds[one.name]),
    )
    said = f"Use {pick.name}, unless labels say otherwise: it is {_READY}."
    return pick, f"{said} It is {_faster(pick, rest, speeds)}. Give labels= to know."
