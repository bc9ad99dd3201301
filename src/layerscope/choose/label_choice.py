"""The choice of a layer and readout by a few labeled examples.

With hundreds of candidates and a few dozen examples, the best candidate owes part of its score to
chance. So its gain is measured on examples that took no part in the choice: each round sets a third
of the examples aside, chooses again with the rest, and measures the gain on those set aside. Probes
are trained without them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from layerscope.cache import cache_dir
from layerscope.capture import Site, expand_sites
from layerscope.choose.candidates import Claim, Limits, block_limits, layers_of
from layerscope.choose.choice import NOTHING, Choice
from layerscope.choose.decide import Decision, Rule, decide
from layerscope.choose.label_scores import LabelEvidence, gather
from layerscope.choose.labels import read_labels
from layerscope.core import heads
from layerscope.core.readout import Readout, parse_readouts
from layerscope.core.scores import Scores
from layerscope.core.sites import pick_layers, site_of
from layerscope.core.statistics import Interval
from layerscope.models import LoadedModel, load
from layerscope.progress import Progress, progress_bar
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import encode, find_missing, make_requests, read_readout

_METRICS = {"auc": "accuracy", "average_precision": "average precision", "spearman": "Spearman"}

RISK = 0.5
"""A choice that more likely loses against the baseline than gains, by examples that had no part in
it, is not made."""

CHANCE = 0.05
"""Nor is one made where the chosen may well do no better than chance: labels that the vectors know
nothing of choose nothing."""

LOSES = "examples that had no part in choosing it do not bear that out"
GUESSES = "on examples that had no part in choosing it, it may do no better than chance"


# The decision
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelDecision:
    """A decision by labels, and the gains of the readout and the layer (scores from 0 to 1)."""

    decision: Decision
    gain_readout: Interval
    gain_layer: Interval


def decide_by_labels(
    evidence: LabelEvidence,
    scores: Scores,
    budget: float | None = None,
    tolerance: float = 0.0,
) -> LabelDecision:
    """Choose by smoothed scores; the gain is judged by examples that had no part in the choice."""
    costs = [layer / evidence.layers[-1] for layer in evidence.layers]
    candidates = []
    for readout in evidence.readouts:
        candidates += layers_of(readout, evidence.layers, costs)
    smoothed = evidence.smooth(scores)
    baseline = evidence.baseline
    limits = Limits(budget, tolerance=tolerance, stay=True)
    rule = Rule.of(candidates, smoothed, baseline, limits)
    gains = evidence.gains_in_rounds(rule.choose)
    has_gains = np.isfinite(gains).any(1)
    gain, by_layer, over_chance = (
        float(np.nanmean(row)) if is_known else 0.0
        for row, is_known in zip(gains, has_gains, strict=True)
    )
    draws = scores.draws
    assert draws is not None

    def moves(candidate: int, reference: int | None = None) -> np.ndarray:
        """Return deviations of a score, or of the difference of two, over resamples."""
        values = draws[candidate] - (0.0 if reference is None else draws[reference])
        return values - np.nanmean(values)

    def interval(value: float, candidate: int, reference: int) -> Interval:
        """Return a gain with the interval of the difference of two candidates."""
        if candidate == reference:
            return NOTHING
        low, high = np.nanquantile(value + moves(candidate, reference), [0.025, 0.975])
        return Interval(value, float(low), float(high))

    def make_claim(_rule: Rule, candidate: int, reference: int) -> Claim:
        before = float(scores.values[reference])
        after = float(scores.values[candidate])
        if candidate == reference:
            return Claim(scores.source, before, after, NOTHING, 0.0)
        risk = _share_below(gain + moves(candidate, reference))
        weak = LOSES if risk >= RISK or gain <= 0 else ""
        if _share_below(over_chance + moves(candidate)) > CHANCE:
            weak = GUESSES
        return Claim(scores.source, before, after, interval(gain, candidate, reference), risk, weak)

    decision = decide(candidates, [smoothed], baseline, limits, make_claim)
    chosen = decision.chosen
    last = evidence.last_of(chosen)
    whole = decision.claim.gain.value
    if last == baseline:  # all of the gain is the layer's under the default readout
        by_layer = whole
    elif chosen == last:
        by_layer = 0.0
    return LabelDecision(
        decision, interval(whole - by_layer, last, baseline), interval(by_layer, chosen, last)
    )


def _share_below(draws: np.ndarray) -> float:
    """Return the share of draws below zero; half of those at zero."""
    finite = draws[np.isfinite(draws)]
    return float(((finite < 0) + 0.5 * (finite == 0)).mean())


# Vectors
# ------------------------------------------------------------------------------------------------


def encode_texts(
    model: LoadedModel,
    texts: Sequence[str],
    readouts: Sequence[Readout],
    sites: Sequence[Site],
    store: VectorStore,
    max_length: int,
    bar: Progress,
) -> dict[str, VectorSpace]:
    """Run the texts that the store lacks under each template; return the spaces by template."""
    requests = make_requests(readouts, sites, max_length)
    missing = find_missing(model, store, requests, texts)
    total = len(texts) * len(missing)
    bar.begin(f"{model.name}|texts", total, total - sum(len(lacking.texts) for lacking in missing))
    encode(model, missing, advance=bar.advance)
    return {lacking.request.template.name: lacking.space for lacking in missing}


def prepare(vectors: np.ndarray, center: bool, unit: bool) -> np.ndarray:
    """Return vectors (sites, texts, D) centered over the texts, then scaled to length 1, as asked.

    They are NaN where all are the same. The last token of a template is the same for every text at
    layer 0: nothing can be scored there.
    """
    mean = vectors.mean(1, keepdims=True, dtype=np.float64)
    size = np.maximum(1e-30, np.abs(vectors).max((1, 2)))
    is_same = np.abs(vectors - mean).max((1, 2)) <= 1e-6 * size
    prepared = (vectors - mean).astype(np.float32) if center else vectors.copy()
    if unit:
        prepared = heads.unit(prepared)
    prepared[is_same] = np.nan
    return prepared


# The choice
# ------------------------------------------------------------------------------------------------


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
    max_length: int = 256,
    store: str | Path | None = None,
    store_size: int | None = 10 * 2**30,
) -> Choice:
    """Choose among all layers and readouts (templates included) unless some are named.

    `max_blocks` is the largest share of the blocks to run; `tolerance`, in points (1 where only
    `max_blocks` is given), takes the earliest layer that comes so near to the best.
    """
    labeled = read_labels(labels)
    loaded = model if isinstance(model, LoadedModel) else load(model)
    blocks = loaded.n_blocks
    limits = block_limits(max_blocks, tolerance, blocks)
    length = min(max_length, loaded.max_length or max_length)
    unit = bool(loaded.identity.get("normalizes"))
    # the last layer and the default readout are always compared
    compared = sorted({*pick_layers(layers, blocks, loaded.name), blocks})
    has_norm = loaded.anatomy.final_norm is not None
    names = "all" if readouts is None else readouts
    named = parse_readouts(names, loaded.has_class_token, has_norm)
    grid = list(dict.fromkeys([Readout(), *named]))
    vector_store = VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size)
    sites = [site for site in expand_sites(None, loaded.anatomy) if site.layer in compared]
    texts = labeled.texts
    keys = [text_key(text) for text in texts]
    with progress_bar(progress) as bar:
        spaces = encode_texts(loaded, texts, grid, sites, vector_store, length, bar)

        def read(readout: Readout) -> np.ndarray:
            space = spaces[readout.template]
            vectors = np.stack([read_readout(space, keys, readout, site.name) for site in sites])
            return prepare(vectors, readout.centering == "corpus", unit)

        bar.begin("scoring|readouts", len(grid))
        evidence = gather(labeled, grid, compared, read, seed=seed, unit=unit, advance=bar.advance)
    scores = evidence.scores(seed=seed)
    by_labels = decide_by_labels(evidence, scores, limits.budget, limits.tolerance / 100)
    decision = by_labels.decision
    gain = decision.claim.gain.scaled(100)
    candidate = decision.rule.candidates[decision.chosen]
    is_centered = candidate.readout is not None and candidate.readout.centering != "none"
    points = 100 * (scores.values if evidence.accuracy is None else evidence.accuracy)
    notes = [*labeled.warnings, *_cut_warnings(spaces, keys, length), *loaded.warnings()]
    if gain.low < 0 < gain.value:
        notes.append("the gain is not certain: its interval includes 0. More labels would tell.")
    if max_blocks is not None and gain.value < 0:
        notes.append("within max_blocks= no layer is expected to reach the default's score.")
    return Choice(
        layer=candidate.layer,
        readout=candidate.readout_name,
        gain=gain,
        risk_of_loss=decision.claim.risk,
        tied=decision.tied_layers,
        rule="labels",
        layers=blocks,
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
        max_length=length,
        unit_length=unit,
        center_on=str(labels) if is_centered else None,
        table=_table(evidence, scores, decision),
    )


def _cut_warnings(
    spaces: Mapping[str, VectorSpace], keys: Sequence[bytes], max_length: int
) -> list[str]:
    """Return a warning for each template under which texts were cut."""
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
    compared = f"{count} layers and readouts on {evidence.judged.shape[1]} examples"
    if decision.weak:
        picked = decision.rule.candidates[decision.picked]
        return (
            f"Of {compared}, layer {picked.layer} under {picked.readout_name} looks best, but "
            f"{decision.weak}: the last layer under the default readout stays."
        )
    if decision.chosen == decision.baseline:
        return f"Of {compared}, the last layer under the default readout is best."
    ties = int(decision.tied.sum()) - 1
    alike = f" {ties} others cannot be told from the best." if ties else ""
    return (
        f"Best of {compared}; the gain is measured on examples that had no part in the choice."
        f"{alike}"
    )


def _table(evidence: LabelEvidence, scores: Scores, decision: Decision) -> pd.DataFrame:
    """Return one row per readout and layer, the best first, in points."""
    baseline = decision.baseline
    draws = scores.draws
    assert draws is not None
    table = pd.DataFrame(
        {
            "layer": candidate.layer,
            "site": site_of(candidate.layer),
            "readout": candidate.readout_name,
            **({} if candidate.readout is None else candidate.readout.columns),
        }
        for candidate in decision.rule.candidates
    )
    table["score"] = 100 * scores.values
    table["se"] = 100 * pd.DataFrame(draws).std(axis=1, ddof=0)
    table["gain"] = 100 * (scores.values - scores.values[baseline])
    table["gain_se"] = 100 * pd.DataFrame(draws - draws[baseline]).std(axis=1, ddof=0)
    table["smoothed"] = 100 * decision.expected.values
    if evidence.accuracy is not None:
        table["accuracy"] = 100 * evidence.accuracy
    table["tied"] = decision.tied
    return table.sort_values(
        "smoothed", ascending=False, na_position="last", ignore_index=True, kind="stable"
    )
