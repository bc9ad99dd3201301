"""`compare`: several models on the user's texts, and in plain words which of them to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose import Candidate, Limits, Scores, decide
from layerscope.choose.judges.agreement import Neighborhoods, similarities
from layerscope.choose.labels.read import Labeled, read_labels
from layerscope.command import Command
from layerscope.core.heads import unit
from layerscope.core.scores import DRAWS
from layerscope.core.statistics import bootstrap_weights, spearman
from layerscope.embedding.encoders import open_encoder
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.improving.sample import LEAST_TEXTS, draw_sample, knows_language
from layerscope.improving.speed import texts_per_second
from layerscope.models import LoadedModel
from layerscope.models.load import find_source
from layerscope.models.source import check_name

_TIMED, _CLEARLY = 24, 1.5  # texts; times as fast: less is no reason to take what scores lower
_READY = "trained for embeddings, and such an encoder beat improved small models on average, not everywhere (docs/comparison.md)"


@dataclass
class ModelComparison:
    """What `compare` returns: a row per model, who agrees with whom, and the verdict."""

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
class _Compared:
    """A model that is compared: how it encodes, and the vectors of the texts and labels."""

    name: str
    encode: Callable[[Sequence[str]], np.ndarray]
    parameters: float
    ready: bool = False  # a sentence encoder, read as it comes; else the mean of the last layer
    trained: bool = False  # for embeddings, and it knows the language
    vectors: np.ndarray | None = None
    items: np.ndarray | None = None
    given: str = ""

    @property
    def read(self) -> str:
        return "as it comes" if self.ready else "last layer, mean"


def compare(
    models: Sequence[Any],
    data: Any,
    *,
    labels: str | Path | None = None,
    column: str | None = None,
    encoding: str | None = None,
    sample: int = 300,
    seed: int = 0,
    **options: Any,
) -> ModelComparison:
    """Compare models on your texts: what they agree on, how they do by labels, what they cost, and
    which to use.

    Sentence encoders, and the folders that `improve` and `export` write, are read as they come;
    language models at the last layer, the mean of the tokens. `labels` is a file of labeled
    examples, as for `improve`; agreement is measured on other texts.

        layerscope.compare(["smollm2-135m", "minilm-l6"], "mine.csv", labels="some.csv").verdict
    """
    if len(models) < 2:
        raise InvalidValueError("a comparison takes two models or more.")
    ways: dict[str, Any] = {
        name: options.pop(name) for name in ("engine", "progress") if name in options
    }
    command = Command("compare", options, **ways, function=compare)
    for model in models:
        if isinstance(model, str | Path):
            check_name(model)
    labeled = None if labels is None else read_labels(labels)
    drawn = draw_sample(data, column=column, encoding=encoding, size=sample, seed=seed)
    known = set() if labeled is None else {text.strip() for text in labeled.texts}
    texts = [text for text in drawn.texts if text.strip() not in known]
    if len(texts) < LEAST_TEXTS:
        raise LayerscopeError(
            f"{drawn.name} has {len(texts)} texts that are not among the labels; {LEAST_TEXTS} at least are needed."
        )
    notes: list[str] = [] if labeled is None else list(labeled.warnings)
    with command:
        names = [
            find_source(one, command.loading).name
            if isinstance(one, str | Path)
            else getattr(one, "name", str(i))
            for i, one in enumerate(models)
        ]
        if len(set(names)) < len(names):
            raise InvalidValueError(
                f"two models have the same name: {', '.join(names)}. Give each once."
            )
        compared = [_open(command, given, texts, notes) for given in models]
        command.bar.begin("reading|texts", len(compared) * (len(texts) + len(known)))
        for one in compared:
            one.vectors = one.encode(texts)
            if labeled is not None:
                one.items = label_items(
                    labeled, dict(zip(labeled.texts, one.encode(labeled.texts), strict=True))
                )
            command.bar.advance(len(texts) + len(known))
        speeds = texts_per_second({one.name: one.encode for one in compared}, texts[:_TIMED])
    matrix = _agreement(compared)
    others = [
        float(np.mean([matrix.at[one.name, two.name] for two in compared if two is not one]))
        for one in compared
    ]
    rows = {
        "model": [one.name for one in compared], "read": [one.read for one in compared],
        "agreement with others": others, "texts per second": [speeds[one.name] for one in compared],
        "parameters, M": [one.parameters / 1e6 for one in compared], "vector": [one.vectors.shape[1] for one in compared],  # type: ignore[union-attr]
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
            measure: _scored(compared, labeled).values.tolist(),
            **dict(list(rows.items())[2:]),
        }
    table = pd.DataFrame(rows).sort_values(
        measure or "agreement with others", ascending=False, ignore_index=True
    )
    pick, verdict = (
        _by_labels(compared, labeled, speeds)
        if labeled is not None
        else _without_labels(compared, others, speeds)
    )
    return ModelComparison(
        table,
        matrix,
        verdict,
        notes,
        measure,
        {"model": pick.given or pick.name, "read": pick.read},
    )


def _open(command: Command, given: Any, texts: Sequence[str], notes: list[str]) -> _Compared:
    """Load a model, and note where it does not know the language of the texts."""
    loaded: LoadedModel = command.load(given, here=True)
    ready = bool(loaded.identity.get("sentence_encoder")) and not loaded.identity.get("untrained")
    encoder = open_encoder(command, given if ready else loaded)
    knows = knows_language(loaded, texts[:200])
    if not knows:
        notes.append(f"{loaded.name} does not know many words of these texts: another language?")

    def encode(some: Sequence[str]) -> np.ndarray:
        return encoder.embed(command.engine, some).vectors[0]

    return _Compared(
        loaded.name,
        encode,
        loaded.identity["parameters"],
        ready,
        trained=ready and knows and not loaded.identity.get("exported"),
        given=str(given) if isinstance(given, str | Path) else "",
    )


def label_items(labeled: Labeled, vectors: Mapping[str, np.ndarray]) -> np.ndarray:
    """What each labeled example says of vectors: whether its nearest neighbor has its class; of
    pairs, their cosine."""
    sides = [unit(np.stack([vectors[text] for text in side])) for side in labeled.sides]
    if len(sides) == 2:
        return (sides[0] * sides[1]).sum(1)
    cosines = sides[0] @ sides[0].T
    np.fill_diagonal(cosines, -np.inf)
    return (labeled.targets[cosines.argmax(1)] == labeled.targets).astype(np.float64)


def _scored(found: Sequence[_Compared], labeled: Labeled) -> Scores:
    """The score of every model, × 100, and the same on resampled examples."""
    items = np.stack([one.items for one in found])  # type: ignore[misc]
    weights = bootstrap_weights(items.shape[1], DRAWS, 0)
    if labeled.kind == "classification":
        return Scores(100 * items.mean(1), 100 * items @ weights.T / items.shape[1])
    return Scores(
        100 * spearman(items, labeled.targets), 100 * spearman(items, labeled.targets, weights)
    )


def _agreement(found: Sequence[_Compared]) -> pd.DataFrame:
    """The mean agreement about neighbors (−½ to 1) of every two models."""
    cosines = [similarities(one.vectors) for one in found]  # type: ignore[arg-type]
    near = [Neighborhoods.of(one) for one in cosines]
    values = np.array([[float(a.agreement(b).mean()) for b in cosines] for a in near])
    names = [one.name for one in found]
    return pd.DataFrame((values + values.T) / 2, index=names, columns=names)


def _faster(one: _Compared, other: _Compared, speeds: Mapping[str, float]) -> str:
    ratio = speeds[one.name] / speeds[other.name]
    return (
        f"{ratio:.1f} × as fast as {other.name}"
        if ratio >= 1
        else f"{1 / ratio:.1f} × slower than {other.name}"
    )


def _by_labels(
    found: Sequence[_Compared], labeled: Labeled, speeds: Mapping[str, float]
) -> tuple[_Compared, str]:
    """The best by labels; of those that the labels cannot tell from it, the fastest if it is
    clearly faster."""
    scores = _scored(found, labeled)
    score = {one.name: value for one, value in zip(found, scores.values, strict=True)}
    candidates = [Candidate((), cost=1 / speeds[one.name]) for one in found]
    decision = decide(candidates, [scores], 0, Limits(ties=True))
    ranked = [
        found[i]
        for i in np.argsort(-np.nan_to_num(scores.values, nan=-np.inf), kind="stable").tolist()
    ]
    best, tied = found[decision.best], [found[i] for i in np.flatnonzero(decision.tied).tolist()]
    quickest = found[decision.chosen]
    is_faster = speeds[quickest.name] >= _CLEARLY * speeds[best.name]
    pick = quickest if is_faster else best
    what = {"classification": "% of the labeled texts have a right nearest neighbor"}.get(
        labeled.kind, "rank correlation × 100"
    )
    said = f"Use {pick.name}: {score[pick.name]:.1f} {what}"
    if pick is not best:
        said += f", the best within the noise ({best.name} has {score[best.name]:.1f})"
        return pick, f"{said}; it is {_faster(pick, best, speeds)}."
    rest = next(one for one in ranked if one is not pick)
    tie = ", which these labels cannot tell from it" if any(one is rest for one in tied) else ""
    return (
        pick,
        f"{said}; {rest.name} has {score[rest.name]:.1f}{tie}. It is {_faster(pick, rest, speeds)}.",
    )


def _without_labels(
    found: Sequence[_Compared], others: Sequence[float], speeds: Mapping[str, float]
) -> tuple[_Compared, str]:
    """A trained encoder first; else the one that the others agree with most. Agreement does not say
    who is right."""
    if not (trained := [one for one in found if one.trained]):
        pick = found[Scores(np.array(others)).best()]
        return (
            pick,
            f"Use {pick.name}: the others agree with it most. Agreement does not say who is right: give labels= to know.",
        )
    pick = max(trained, key=lambda one: speeds[one.name])
    rest = max(
        (one for one in found if one is not pick),
        key=lambda one: speeds[one.name],
    )
    said = f"Use {pick.name}, unless labels say otherwise: it is {_READY}."
    return pick, f"{said} It is {_faster(pick, rest, speeds)}. Give labels= to know."
