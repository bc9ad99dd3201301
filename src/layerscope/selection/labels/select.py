"""`select_with_labels`: which layer and readout of a model serve best, told by a few labeled examples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.core.candidates import ScoredCandidates
from layerscope.core.sites import site_of
from layerscope.errors import LayerscopeError
from layerscope.models import LoadedModel
from layerscope.progress import progress_bar
from layerscope.selection.choice import Choice
from layerscope.selection.choose import choose
from layerscope.selection.labels.decide import LabelDecision, LabelEvidence, decide, gather, smooth, weigh
from layerscope.selection.labels.read import Labeled, read_labels
from layerscope.selection.labels.source import LabeledVectors, Opened, encode_texts, open_source, truncated
from layerscope.store.atomic import plain
from layerscope.store.embeddings import DEFAULT_BUDGET, EmbeddingStore


@dataclass(frozen=True)
class LabeledChoice(Choice):
    """A layer and readout chosen with labels. Scores and gains are in points (score × 100).

    `metric`, `before` and `after` are the user's own measure (accuracy, average precision or Spearman), cross-validated on all
    examples, for the last layer under the default readout and for the choice; the latter flatters a little, since these examples
    chose it. The decision follows a finer measure, `judged_by`: `reference_score` is what it gives the last layer under the
    default readout, `expected_score` adds the expected gain. `table` has a row per layer and readout: its score with standard
    error, the smoothed score that the choice followed, and whether it ties with the best. `label_free` is the answer without
    labels, where a profile was given.
    """

    labels: Mapping[str, Any] = field(default_factory=dict)
    judged_by: str = ""
    reference_score: float = float("nan")
    expected_score: float | None = None
    candidates: int = 0
    tied_candidates: int = 0
    label_free: Mapping[str, Any] | None = None
    conventions: Mapping[str, Any] = field(default_factory=dict)
    table: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    @property
    def gain_same_readout(self) -> float | None:
        """The expected gain over the last layer of the chosen readout."""
        return None if self.gain_layer is None else self.gain_layer.value

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the table is left out (`to_dict(table=True)` has it)."""
        names = ("labels", "judged_by", "reference_score", "expected_score", "gain_same_readout", "candidates", "tied_candidates")
        return plain({**super().as_dict(), **{name: getattr(self, name) for name in (*names, "label_free", "conventions")}})

    def to_dict(self, table: bool = False) -> dict[str, Any]:
        """The same, with every candidate's row where asked."""
        out = self.as_dict()
        if table:
            out["table"] = plain(self.table.to_dict(orient="records"))
        return out


_METRICS = {"auc": "accuracy", "average_precision": "average precision", "spearman": "Spearman"}
_SCORES = {
    "auc": "100 × the share of examples of other classes that come after an example's own, half by a cross-validated probe, "
    "half by cosines; 50 is chance",
    "average_precision": "100 × the average precision of cosines",
    "spearman": "100 × Spearman's correlation of cosines and scores",
}


def make_choice(
    labeled: Labeled,
    opened: Opened,
    evidence: LabelEvidence,
    scored: ScoredCandidates,
    decision: LabelDecision,
    facts: dict[str, Any],
    without: dict[str, Any] | None,
) -> LabeledChoice:
    """The choice with everything it rests on."""
    readout_at, layer_at = decision.chosen
    layer, readout = evidence.layers[layer_at], evidence.readouts[readout_at]
    reference = 100 * float(scored.score[evidence.reference])
    tied = [evidence.layers[k] for k in np.flatnonzero(decision.tied[readout_at])]
    if layer not in tied:
        tied = sorted([*tied, layer])
    return LabeledChoice(
        layer=layer,
        site=site_of(layer),
        readout=readout.name,
        expected_gain=100 * decision.gain.value,
        ci_low=100 * decision.gain.low,
        ci_high=100 * decision.gain.high,
        risk_of_loss=decision.risk,
        tied=tuple(tied),
        rule="labels",
        blocks_saved=opened.n_blocks - layer,
        gain_readout=decision.by_readout.scaled(100),
        gain_layer=decision.by_layer.scaled(100),
        layers=opened.n_blocks,
        model=opened.name,
        reason=_reason(evidence, decision, labeled),
        warnings=tuple(_notes(labeled, opened, decision, facts)),
        abstained=decision.abstained,
        metric=_METRICS[evidence.measure.name],
        before=_plain_score(evidence, scored, evidence.reference),
        after=_plain_score(evidence, scored, decision.chosen),
        identity=dict(opened.identity),
        source=None if opened.run is None else str(opened.run),
        max_length=opened.max_length,
        unit_length=opened.unit,
        center_on=str(facts["labels"]) if readout.centering != "none" else None,
        extra=_accuracies(evidence, decision),
        labels=labeled.facts(),
        judged_by=evidence.measure.name,
        reference_score=reference,
        expected_score=reference + 100 * decision.gain.value,
        candidates=int(evidence.defined.sum()),
        tied_candidates=int(decision.tied.sum()),
        label_free=without,
        conventions=_conventions(opened, evidence, facts),
        table=score_rows(evidence, scored, decision),
    )


def _plain_score(evidence: LabelEvidence, scored: ScoredCandidates, place: tuple[int, int]) -> float:
    """The user's measure of one candidate, cross-validated on all examples, in points."""
    return 100 * float(scored.score[place] if evidence.accuracy is None else evidence.accuracy[place])


def _accuracies(evidence: LabelEvidence, decision: LabelDecision) -> dict[str, Any]:
    """For classes, how often the cross-validated probe is right; the chosen one's flatters, since these examples chose it."""
    if evidence.accuracy is None:
        return {}
    accuracies = {"accuracy": evidence.accuracy[decision.chosen], "reference_accuracy": evidence.accuracy[evidence.reference]}
    return {name: 100 * float(value) for name, value in accuracies.items()}


def score_rows(evidence: LabelEvidence, scored: ScoredCandidates, decision: LabelDecision) -> pd.DataFrame:
    """One row per readout and layer, the best first, in points."""
    reference, smoothed = evidence.reference, smooth(scored)
    assert scored.draws is not None
    gain = scored.score - scored.score[reference]
    drawn = scored.draws - scored.draws[reference]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a candidate that is undefined has no error either
        errors = {"se": np.nanstd(scored.draws, axis=-1), "gain_se": np.nanstd(drawn, axis=-1)}
    rows = []
    for r, readout in enumerate(evidence.readouts):
        for k, layer in enumerate(evidence.layers):
            numbers = {
                "score": scored.score[r, k],
                "se": errors["se"][r, k],
                "gain": gain[r, k],
                "gain_se": errors["gain_se"][r, k],
            }
            place = {"layer": layer, "site": site_of(layer), "readout": readout.name, **asdict(readout)}
            numbers["smoothed"] = smoothed.score[r, k]
            if evidence.accuracy is not None:
                numbers["accuracy"] = evidence.accuracy[r, k]
            points = {name: 100 * float(value) for name, value in numbers.items()}
            rows.append({**place, **points, "tied": bool(decision.tied[r, k])})
    return pd.DataFrame(rows).sort_values("smoothed", ascending=False, na_position="last", ignore_index=True, kind="stable")


def _reason(evidence: LabelEvidence, decision: LabelDecision, labeled: Labeled) -> str:
    best_readout, best_layer = evidence.readouts[decision.best[0]].name, evidence.layers[decision.best[1]]
    compared = f"{int(evidence.defined.sum())} layers and readouts on {len(labeled)} examples"
    if decision.abstained:
        why = {
            "loss": "examples that had no part in choosing it do not bear that out",
            "chance": "on examples that had no part in choosing it, it may do no better than chance",
        }[decision.weak]
        return (
            f"Of {compared}, layer {best_layer} under {best_readout} looks best, but {why}: the evidence is weak, and the "
            "last layer under the default readout stays."
        )
    if decision.chosen == evidence.reference:
        return f"Of {compared}, the last layer under the default readout is best."
    others = int(decision.tied.sum()) - 1
    ties = f" {others} others cannot be told from the best." if others else ""
    return f"Best of {compared}; the gain is measured on examples that had no part in the choice.{ties}"


def _notes(labeled: Labeled, opened: Opened, decision: LabelDecision, facts: dict[str, Any]) -> list[str]:
    out = list(labeled.warnings)
    for template, cut in facts["truncated"].items():
        if cut:
            out.append(f"{cut} of {facts['texts']} texts were cut to {opened.max_length} tokens under template {template!r}.")
    if opened.identity.get("quantization"):
        out.append(f"the weights were quantized ({opened.identity['quantization']}) in their source.")
    if decision.gain.low < 0 < decision.gain.value:
        out.append("the gain is not certain: its interval includes 0. More labels would tell.")
    if facts["budget"] is not None and decision.gain.value < 0:
        out.append("within this budget no layer is expected to reach the last layer under the default readout.")
    return out


def _conventions(opened: Opened, evidence: LabelEvidence, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "reference": "the last layer under the default readout, plain/mean/applied/keep/none",
        "score": _SCORES[evidence.measure.name],
        "gain": "chosen anew without a third of the examples, measured on that third; mean over all rounds",
        "tied": "not told from the best, examples resampled, 95 % for all candidates at once",
        "centering": "the mean over the given texts is subtracted",
        "unit_length": opened.unit,
        "max_length": opened.max_length,
        **{name: facts[name] for name in ("folds", "seed", "budget", "tolerance", "texts", "encoded")},
    }


def label_free_answer(run: Path | None) -> dict[str, Any] | None:
    """Layer and expected gain of the label-free rule on a profile; None where there is no profile to apply it to."""
    if run is None or not (run / "profile.parquet").is_file():
        return None
    try:
        choice = choose(run)
    except LayerscopeError as error:
        return {"layer": None, "reason": str(error)}
    return {name: getattr(choice, name) for name in ("layer", "rule", "expected_gain", "ci_low", "ci_high", "abstained")}


def select_with_labels(
    source: str | Path | LoadedModel,
    labels: str | Path,
    *,
    layers: Sequence[int] | None = None,
    readouts: str | Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    offline: bool = False,
    progress: bool | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    store: str | Path | None = None,
    store_budget: int | None = DEFAULT_BUDGET,
) -> LabeledChoice:
    """Choose a layer and readout with labeled examples.

    `source` is a model (name, folder, hub id) or the folder of a profile or evaluation. `labels` is a csv, tsv or jsonl file with
    the columns `text,label`, `sentence1,sentence2,label` or `sentence1,sentence2,score`. All layers and readouts (templates
    included) are compared unless some are named. `budget` is the largest share of the blocks to run; `tolerance`, in points
    (1 where only a budget is given), takes the earliest layer that comes so near to the best.
    """
    labeled = read_labels(labels)
    opened = open_source(source, max_length, offline)
    chosen_layers, texts = opened.layers(layers), labeled.texts
    embeddings = EmbeddingStore(Path(store) if store else cache_dir() / "embeddings", store_budget)
    grid = opened.readouts(readouts, offline)
    with progress_bar(progress) as bar:
        spaces = None if opened.model is not None else opened.stored(embeddings, texts, grid, chosen_layers)
        facts: dict[str, Any]
        if spaces is not None:
            facts = {"texts": len(texts), "encoded": 0, "truncated": truncated(spaces, texts)}
        else:
            model = opened.loaded(offline)
            grid = opened.readouts(readouts, offline)  # a model that is loaded says whether it has a final norm
            sites = [site for site in expand_sites(None, model.anatomy) if site.layer in chosen_layers]
            spaces, facts = encode_texts(model, texts, grid, sites, embeddings, opened.max_length, bar, batch_size)
        vectors = LabeledVectors(spaces, texts, [site_of(layer) for layer in chosen_layers], opened.unit)
        bar.begin("scoring|readouts", len(grid))
        evidence = gather(labeled, grid, chosen_layers, vectors, folds=folds, seed=seed, unit=opened.unit, advance=bar.advance)
    scored = weigh(evidence, seed=seed)
    decision = decide(evidence, scored, budget, None if tolerance is None else tolerance / 100)
    without = label_free_answer(opened.run)
    settings = {"labels": labels, "folds": folds, "seed": seed, "budget": budget, "tolerance": tolerance}
    return make_choice(labeled, opened, evidence, scored, decision, {**facts, **settings}, without)
