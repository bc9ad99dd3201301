"""The choice of a layer and readout by a few labeled examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.choose.candidates import block_limits
from layerscope.choose.choice import Choice
from layerscope.choose.decide import Decision
from layerscope.choose.labels.read import read_labels
from layerscope.choose.labels.scores import LabelEvidence, decide_by_labels, gather
from layerscope.choose.labels.source import LabeledVectors, encode_texts, open_source
from layerscope.core.scores import Scores
from layerscope.core.sites import site_of
from layerscope.models import LoadedModel
from layerscope.progress import progress_bar
from layerscope.vectors import VectorSpace, VectorStore, text_key

_METRICS = {"auc": "accuracy", "average_precision": "average precision", "spearman": "Spearman"}


def choose_by_labels(
    model: str | Path | LoadedModel,
    labels: str | Path,
    *,
    layers: Sequence[int] | None = None,
    readouts: str | Sequence[str] | None = None,
    seed: int = 0,
    progress: bool | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    max_length: int | None = None,
    store: str | Path | None = None,
    store_size: int | None = 10 * 2**30,
) -> Choice:
    """Choose among all layers and readouts (templates included) unless some are named.

    `max_blocks` is the largest share of the blocks to run; `tolerance`, in points (1 where only
    `max_blocks` is given), takes the earliest layer that comes so near to the best.
    """
    labeled = read_labels(labels)
    source = open_source(model, max_length)
    loaded = source.model
    limits = block_limits(max_blocks, tolerance, loaded.n_blocks)
    compared = source.layers(layers)
    grid = source.readouts(readouts)
    vector_store = VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size)
    sites = [site for site in expand_sites(None, loaded.anatomy) if site.layer in compared]
    texts = labeled.texts
    length = source.max_length
    with progress_bar(progress) as bar:
        spaces = encode_texts(loaded, texts, grid, sites, vector_store, length, bar)
        vectors = LabeledVectors(spaces, texts, [site.name for site in sites], source.unit)
        bar.begin("scoring|readouts", len(grid))
        evidence = gather(
            labeled, grid, compared, vectors, seed=seed, unit=source.unit, advance=bar.advance
        )
    scores = evidence.scores(seed=seed)
    by_labels = decide_by_labels(evidence, scores, limits.budget, limits.tolerance / 100)
    decision = by_labels.decision
    gain = decision.claim.gain.scaled(100)
    candidate = decision.rule.candidates[decision.chosen]
    is_centered = candidate.readout is not None and candidate.readout.centering != "none"
    points = 100 * (scores.values if evidence.accuracy is None else evidence.accuracy)
    notes = [*labeled.warnings, *_cut_warnings(spaces, texts, length), *loaded.warnings()]
    if gain.low < 0 < gain.value:
        notes.append("the gain is not certain: its interval includes 0. More labels would tell.")
    if max_blocks is not None and gain.value < 0:
        notes.append(
            "within max_blocks= no layer is expected to reach the last layer under the default "
            "readout."
        )
    return Choice(
        layer=candidate.layer,
        readout=candidate.readout_name,
        gain=gain,
        risk_of_loss=decision.claim.risk,
        tied=decision.tied_layers,
        rule="labels",
        layers=loaded.n_blocks,
        model=loaded.name,
        reason=_reason(evidence, decision),
        warnings=tuple(notes),
        abstained=bool(decision.weak),
        gain_readout=by_labels.gain_readout.scaled(100),
        gain_layer=by_labels.gain_layer.scaled(100),
        metric=_METRICS[evidence.measure.name],
        before=float(points[decision.baseline]),
        after=float(points[decision.chosen]),
        identity=dict(loaded.identity),
        source=None if source.run is None else str(source.run),
        max_length=length,
        unit_length=source.unit,
        center_on=str(labels) if is_centered else None,
        table=_table(evidence, scores, decision),
    )


def _cut_warnings(
    spaces: Mapping[str, VectorSpace], texts: Sequence[str], max_length: int
) -> list[str]:
    """Return a warning for each template under which texts were cut."""
    keys = [text_key(text) for text in texts]
    counts = {
        name: int(space.read_numbers(keys, "truncated").sum()) for name, space in spaces.items()
    }
    return [
        f"{count} of {len(keys)} texts were cut to {max_length} tokens under template {name!r}."
        for name, count in counts.items()
        if count
    ]


def _reason(evidence: LabelEvidence, decision: Decision) -> str:
    """Return why this candidate was chosen, in words."""
    count = int(evidence.defined.sum())
    examples = evidence.judged.shape[1]
    compared = f"{count} layers and readouts on {examples} examples"
    if decision.weak:
        picked = decision.rule.candidates[decision.picked]
        return (
            f"Of {compared}, layer {picked.layer} under {picked.readout} looks best, but "
            f"{decision.weak}: the evidence is weak, and the last layer under the default readout "
            "stays."
        )
    if decision.chosen == decision.baseline:
        return f"Of {compared}, the last layer under the default readout is best."
    tied_others = int(decision.tied.sum()) - 1
    ties = f" {tied_others} others cannot be told from the best." if tied_others else ""
    return (
        f"Best of {compared}; the gain is measured on examples that had no part in the choice."
        f"{ties}"
    )


def _table(evidence: LabelEvidence, scores: Scores, decision: Decision) -> pd.DataFrame:
    """Return one row per readout and layer, the best first, in points."""
    baseline = decision.baseline
    draws = scores.draws
    assert draws is not None
    candidates = decision.rule.candidates
    table = pd.DataFrame(
        {
            "layer": candidate.layer,
            "site": site_of(candidate.layer),
            "readout": candidate.readout_name,
            **({} if candidate.readout is None else asdict(candidate.readout)),
        }
        for candidate in candidates
    )
    table["score"] = 100 * scores.values
    table["se"] = 100 * _spread(draws)
    table["gain"] = 100 * (scores.values - scores.values[baseline])
    table["gain_se"] = 100 * _spread(draws - draws[baseline])
    table["smoothed"] = 100 * decision.expected.values
    if evidence.accuracy is not None:
        table["accuracy"] = 100 * evidence.accuracy
    table["tied"] = decision.tied
    return table.sort_values(
        "smoothed", ascending=False, na_position="last", ignore_index=True, kind="stable"
    )


def _spread(draws: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each row, undefined draws left out."""
    return pd.DataFrame(draws).std(axis=1, ddof=0).to_numpy()
