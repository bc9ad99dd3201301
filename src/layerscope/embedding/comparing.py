"""`compare`: several models on the user's texts, and in plain words which of them to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose import Candidate, Limits, Scores, decide
from layerscope.choose.judges import Neighborhoods, similarities
from layerscope.choose.labels import Labeled, read_labels
from layerscope.command import Command
from layerscope.core.heads import unit
from layerscope.core.scores import DRAWS
from layerscope.core.statistics import bootstrap_weights, spearman
from layerscope.embedding.encoders import open_encoder
from layerscope.engines import Engine
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.improving.judging import knows_language
from layerscope.improving.request import LEAST_TEXTS, draw_sample
from layerscope.models import LoadedModel
from layerscope.progress import Progress

_CLEARLY_FASTER = 1.5
"""The ratio of speeds from which on a tied model is taken for its speed."""
_TRAINED = (
    "trained for embeddings, and such an encoder beat improved small models on average, not "
    "everywhere (docs/embed.md)"
)


@dataclass
class ModelComparison:
    """The result of `compare`: a row per model, their agreement, and the verdict.

    `measure` is the column of the scores by labels. `pick` has the model that the verdict names, as
    it was given, and how it is read.
    """

    table: pd.DataFrame
    agreement: pd.DataFrame
    verdict: str
    notes: list[str] = field(default_factory=list)
    measure: str = ""
    pick: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "verdict": self.verdict,
            "measure": self.measure,
            "pick": self.pick,
            "table": self.table.to_dict(orient="records"),
            "agreement": self.agreement.to_dict(),
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        return f"{self.verdict}\n\n{self.table.to_string(index=False)}"


@dataclass(frozen=True)
class ComparedModel:
    """A model with the vectors of the texts and of the labeled texts, and its speed.

    `trained`: it was trained for embeddings, and knows the language of the texts.
    """

    name: str
    read: str
    vectors: np.ndarray
    labeled_vectors: np.ndarray
    texts_per_second: float
    parameters: float = 0
    trained: bool = False
    spec: str = ""


def compare(
    models: Sequence[Any],
    data: Any,
    *,
    labels: str | Path | None = None,
    column: str | None = None,
    encoding: str | None = None,
    sample: int = 300,
    seed: int = 0,
    progress: bool | Progress | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> ModelComparison:
    """Compare models on your texts: their agreement, scores by labels, speed and size, and which
    to use.

    Sentence encoders, and the folders that `improve` and `export` write, are read as they come;
    language models at the last layer, the mean of the tokens. `labels` is a file of labeled
    examples, as for `improve`; agreement is measured on other texts.

        layerscope.compare(["smollm2-135m", "minilm-l6"], "mine.csv", labels="some.csv").verdict
    """
    if len(models) < 2:
        raise InvalidValueError("a comparison takes two models or more.")
    command = Command("compare", options, engine=engine, progress=progress, function=compare)
    labeled = None if labels is None else read_labels(labels)
    drawn = draw_sample(data, column=column, encoding=encoding, size=sample, seed=seed)
    labeled_texts = [] if labeled is None else labeled.texts
    excluded = {text.strip() for text in labeled_texts}
    texts = [text for text in drawn.texts if text.strip() not in excluded]
    if len(texts) < LEAST_TEXTS:
        raise LayerscopeError(
            f"{drawn.name} has {len(texts)} texts that are not among the labels; {LEAST_TEXTS} at "
            "least are needed."
        )
    notes = [] if labeled is None else list(labeled.warnings)
    compared: list[ComparedModel] = []
    with command:
        command.bar.begin("reading|texts", len(models) * (len(texts) + len(labeled_texts)))
        for model in models:
            loaded = command.load(model, here=True)
            if loaded.name in [earlier.name for earlier in compared]:
                raise InvalidValueError(f"two models are called {loaded.name}. Give each once.")
            knows = knows_language(loaded, texts[:200])
            if not knows:
                notes.append(
                    f"{loaded.name} does not know many words of these texts: another language?"
                )
            compared.append(_read(command, model, loaded, texts, labeled_texts, knows))
    agreement = _agreement(compared)
    others = agreement.to_numpy() - np.eye(len(compared)) * np.diag(agreement)
    columns: dict[str, Any] = {
        "model": [model.name for model in compared],
        "read": [model.read for model in compared],
        "agreement with others": others.sum(axis=1) / (len(compared) - 1),
        "texts per second": [model.texts_per_second for model in compared],
        "parameters, M": [model.parameters / 1e6 for model in compared],
        "vector": [model.vectors.shape[1] for model in compared],
    }
    table = pd.DataFrame(columns)
    measure = ""
    if labeled is None:
        pick, verdict = choose_without_labels(compared, columns["agreement with others"])
    else:
        scores = label_scores(compared, labeled)
        pick, verdict = choose_by_labels(compared, labeled, scores)
        measure = "rank correlation with your scores × 100"
        if labeled.kind == "classification":
            measure = "right nearest neighbor, %"
        table.insert(2, measure, scores.values)
    table = table.sort_values(
        measure or "agreement with others", ascending=False, ignore_index=True
    )
    named = {"model": pick.spec or pick.name, "read": pick.read}
    return ModelComparison(table, agreement, verdict, notes, measure, named)


def _read(
    command: Command,
    model: Any,
    loaded: LoadedModel,
    texts: Sequence[str],
    labeled_texts: Sequence[str],
    knows_texts: bool,
) -> ComparedModel:
    """Encode the texts with a model, and measure how fast it is."""
    identity = loaded.identity
    is_encoder = bool(identity.get("sentence_encoder")) and not identity.get("untrained")
    encoder = open_encoder(command, model if is_encoder else loaded)
    encoder.embed(command.engine, texts[:2])  # takes the time that is needed once
    start = perf_counter()
    vectors = encoder.embed(command.engine, texts, command.bar.advance).vectors[0]
    seconds = perf_counter() - start
    labeled_vectors = np.empty((0, vectors.shape[1]), dtype=np.float32)
    if labeled_texts:
        embedded = encoder.embed(command.engine, labeled_texts, command.bar.advance)
        labeled_vectors = embedded.vectors[0]
    return ComparedModel(
        loaded.name,
        "as it comes" if is_encoder else "last layer, mean",
        vectors,
        labeled_vectors,
        len(texts) / seconds,
        identity["parameters"],
        trained=is_encoder and knows_texts and not identity.get("exported"),
        spec=str(model) if isinstance(model, str | Path) else "",
    )


def label_items(labeled: Labeled, vectors: np.ndarray) -> np.ndarray:
    """Return a number per labeled example from the vectors of `labeled.texts`.

    It is 1 if its nearest neighbor has its class, else 0; of a pair it is the cosine.
    """
    places = {text: i for i, text in enumerate(labeled.texts)}
    sides = [unit(vectors[[places[text] for text in side]]) for side in labeled.sides]
    if len(sides) == 2:
        cosines_of_pairs: np.ndarray = (sides[0] * sides[1]).sum(1)
        return cosines_of_pairs
    cosines = sides[0] @ sides[0].T
    np.fill_diagonal(cosines, -np.inf)
    return (labeled.targets[cosines.argmax(1)] == labeled.targets).astype(np.float64)


def label_scores(models: Sequence[ComparedModel], labeled: Labeled) -> Scores:
    """Return the score of every model, × 100, also on resampled examples."""
    items = np.stack([label_items(labeled, model.labeled_vectors) for model in models])
    weights = bootstrap_weights(items.shape[1], DRAWS, 0)
    if labeled.kind == "classification":
        return Scores(100 * items.mean(1), 100 * items @ weights.T / items.shape[1])
    values = spearman(items, labeled.targets)
    return Scores(100 * values, 100 * spearman(items, labeled.targets, weights))


def _agreement(models: Sequence[ComparedModel]) -> pd.DataFrame:
    """Return the mean agreement about neighbors (−½ to 1) of every two models."""
    cosines = [similarities(model.vectors) for model in models]
    references = [Neighborhoods.of(similarity) for similarity in cosines]
    values = np.array(
        [[float(reference.agreement(c).mean()) for c in cosines] for reference in references]
    )
    names = [model.name for model in models]
    return pd.DataFrame((values + values.T) / 2, index=names, columns=names)


def _speed_words(model: ComparedModel, rival: ComparedModel) -> str:
    ratio = model.texts_per_second / rival.texts_per_second
    words = f"{ratio:.1f} × as fast as" if ratio >= 1 else f"{1 / ratio:.1f} × slower than"
    return f"It is {words} {rival.name}."


def choose_by_labels(
    models: Sequence[ComparedModel], labeled: Labeled, scores: Scores
) -> tuple[ComparedModel, str]:
    """Return the best model by labels and the verdict.

    Of models that the labels cannot tell from the best, the fastest is taken if it is clearly
    faster.
    """
    candidates = [Candidate((), cost=1 / model.texts_per_second) for model in models]
    decision = decide(candidates, [scores], 0, Limits(ties=True))
    pick = decision.best
    fastest = models[decision.chosen].texts_per_second
    if fastest >= _CLEARLY_FASTER * models[pick].texts_per_second:
        pick = decision.chosen
    ranking = np.argsort(-np.nan_to_num(scores.values, nan=-np.inf), kind="stable")
    rival = next(int(i) for i in ranking if i != pick)
    unit_words = "rank correlation × 100"
    if labeled.kind == "classification":
        unit_words = "% of the labeled texts have a right nearest neighbor"
    is_tied = decision.tied[pick] and decision.tied[rival]
    tie = ", which these labels cannot tell from it" if is_tied else ""
    return models[pick], (
        f"Use {models[pick].name}: {scores.values[pick]:.1f} {unit_words}; {models[rival].name} "
        f"has {scores.values[rival]:.1f}{tie}. {_speed_words(models[pick], models[rival])}"
    )


def choose_without_labels(
    models: Sequence[ComparedModel], agreement: Sequence[float]
) -> tuple[ComparedModel, str]:
    """Return the fastest trained encoder, else the model that the others agree with most, and the
    verdict."""
    by_speed = sorted(models, key=lambda model: -model.texts_per_second)
    trained = [model for model in by_speed if model.trained]
    if not trained:
        pick = models[int(np.argmax(agreement))]
        return pick, (
            f"Use {pick.name}: the others agree with it most. Agreement does not say who is right: "
            "give labels= to know."
        )
    pick = trained[0]
    rival = next(model for model in by_speed if model is not pick)
    return pick, (
        f"Use {pick.name}, unless labels say otherwise: it is {_TRAINED}. "
        f"{_speed_words(pick, rival)} Give labels= to know."
    )
