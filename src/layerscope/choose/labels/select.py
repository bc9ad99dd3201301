"""The choice of a layer and readout by a few labeled examples."""

from __future__ import annotations

import warnings
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
from layerscope.choose.labels.read import Labeled, read_labels
from layerscope.choose.labels.scores import LabelEvidence, decide_by_labels, gather
from layerscope.choose.labels.source import LabeledVectors, Opened, encode_texts, open_source
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
    folds: int = 5,
    seed: int = 0,
    progress: bool | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    store: str | Path | None = None,
    store_size: int | None = 10 * 2**30,
) -> Choice:
    """Choose among all layers and readouts (templates included) unless some are named.

    `max_blocks` is the largest share of the blocks to run; `tolerance`, in points (1 where only
    `max_blocks` is given), takes the earliest layer that comes so near to the best.
    """
    labeled = read_labels(labels)
    opened = open_source(model, max_length)
    limits = block_limits(max_blocks, tolerance, opened.model.n_blocks)
    chosen_layers, grid = opened.layers(layers), opened.readouts(readouts)
    embeddings = VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size)
    sites = [
        site for site in expand_sites(None, opened.model.anatomy) if site.layer in chosen_layers
    ]
    with progress_bar(progress) as bar:
        spaces, _ = encode_texts(
            opened.model,
            labeled.texts,
            grid,
            sites,
            embeddings,
            opened.max_length,
            bar,
            batch_size,
        )
        vectors = LabeledVectors(
            spaces, labeled.texts, [site_of(layer) for layer in chosen_layers], opened.unit
        )
        bar.begin("scoring|readouts", len(grid))
        evidence = gather(
            labeled,
            grid,
            chosen_layers,
            vectors,
            folds=folds,
            seed=seed,
            unit=opened.unit,
            advance=bar.advance,
        )
    scores = evidence.scores(seed=seed)
    made = decide_by_labels(evidence, scores, limits.budget, limits.tolerance / 100)
    decision, gain = made.decision, made.decision.claim.gain.scaled(100)
    candidate = decision.rule.candidates[decision.chosen]
    readout = candidate.readout
    assert readout is not None
    plain = 100 * (scores.values if evidence.accuracy is None else evidence.accuracy)
    notes = [*labeled.warnings, *_cut(spaces, labeled, opened), *opened.model.warnings()]
    if gain.low < 0 < gain.value:
        notes.append("the gain is not certain: its interval includes 0. More labels would tell.")
    if max_blocks is not None and gain.value < 0:
        notes.append(
            "within max_blocks= no layer is expected to reach the last layer under the default "
            "readout."
        )
    return Choice(
        layer=candidate.layer,
        readout=readout.name,
        gain=gain,
        risk_of_loss=decision.claim.risk,
        tied=decision.tied_layers,
        rule="labels",
        layers=opened.model.n_blocks,
        model=opened.model.name,
        reason=_reason(evidence, decision),
        warnings=tuple(notes),
        abstained=bool(decision.weak),
        gain_readout=made.gain_readout.scaled(100),
        gain_layer=made.gain_layer.scaled(100),
        metric=_METRICS[evidence.measure.name],
        before=float(plain[decision.baseline]),
        after=float(plain[decision.chosen]),
        identity=dict(opened.model.identity),
        source=None if opened.run is None else str(opened.run),
        max_length=opened.max_length,
        unit_length=opened.unit,
        center_on=str(labels) if readout.centering != "none" else None,
        table=_table(evidence, scores, decision),
    )


def _cut(spaces: Mapping[str, VectorSpace], labeled: Labeled, opened: Opened) -> list[str]:
    """Return a warning for each template under which texts were cut."""
    keys = [text_key(text) for text in labeled.texts]
    counts = {
        name: int(space.read_numbers(keys, "truncated").sum()) for name, space in spaces.items()
    }
    return [
        f"{count} of {len(keys)} texts were cut to {opened.max_length} tokens under template "
        f"{name!r}."
        for name, count in counts.items()
        if count
    ]


def _reason(evidence: LabelEvidence, decision: Decision) -> str:
    """Return why this candidate was chosen, in words."""
    count, examples = int(evidence.defined.sum()), evidence.judged.shape[1]
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
    others = int(decision.tied.sum()) - 1
    ties = f" {others} others cannot be told from the best." if others else ""
    return (
        f"Best of {compared}; the gain is measured on examples that had no part in the choice."
        f"{ties}"
    )


def _table(evidence: LabelEvidence, scores: Scores, decision: Decision) -> pd.DataFrame:
    """Return one row per readout and layer, the best first, in points."""
    baseline, draws = decision.baseline, scores.draws
    assert draws is not None
    columns = {
        "score": scores.values,
        "se": _spread(draws),
        "gain": scores.values - scores.values[baseline],
        "gain_se": _spread(draws - draws[baseline]),
        "smoothed": decision.expected.values,
    }
    if evidence.accuracy is not None:
        columns["accuracy"] = evidence.accuracy
    rows = []
    for i, candidate in enumerate(decision.rule.candidates):
        assert candidate.readout is not None
        rows.append(
            {
                "layer": candidate.layer,
                "site": site_of(candidate.layer),
                "readout": candidate.readout.name,
                **asdict(candidate.readout),
                **{name: 100 * float(values[i]) for name, values in columns.items()},
                "tied": bool(decision.tied[i]),
            }
        )
    return pd.DataFrame(rows).sort_values(
        "smoothed", ascending=False, na_position="last", ignore_index=True, kind="stable"
    )


def _spread(draws: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a candidate that is undefined has no error either
        return np.nanstd(draws, axis=1)
