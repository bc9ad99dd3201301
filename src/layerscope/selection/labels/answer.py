"""Putting the answer into words and numbers that a reader can use."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.sites import site_of
from layerscope.selection.labels.choice import LabelledChoice
from layerscope.selection.labels.decide import Decision
from layerscope.selection.labels.evidence import Evidence
from layerscope.selection.labels.read import Labelled
from layerscope.selection.labels.source import Opened
from layerscope.selection.labels.weigh import Weighed

_SCORES = {
    "auc": "100 × the share of examples of other classes that come after an example's own, half by a cross-validated probe, "
    "half by cosines; 50 is chance",
    "average_precision": "100 × the average precision of cosines",
    "spearman": "100 × Spearman's correlation of cosines and scores",
}


def make_choice(
    labelled: Labelled,
    opened: Opened,
    evidence: Evidence,
    weighed: Weighed,
    decision: Decision,
    facts: dict[str, Any],
    without: dict[str, Any] | None,
) -> LabelledChoice:
    """The choice with everything it rests on."""
    readout_at, layer_at = decision.chosen
    layer, readout = evidence.layers[layer_at], evidence.readouts[readout_at]
    reference = 100 * float(weighed.score[evidence.reference])
    tied = [evidence.layers[k] for k in np.flatnonzero(decision.tied[readout_at])]
    if layer not in tied:
        tied = sorted([*tied, layer])
    return LabelledChoice(
        layer=layer,
        site=site_of(layer),
        readout=readout.name,
        expected_gain=100 * decision.gain,
        ci_low=100 * decision.low,
        ci_high=100 * decision.high,
        risk_of_loss=decision.risk,
        tied=tied,
        rule="labels",
        blocks_saved=opened.n_blocks - layer,
        layers=opened.n_blocks,
        model=opened.name,
        reason=_reason(evidence, decision, labelled),
        warnings=_notes(labelled, opened, decision, facts),
        abstained=decision.abstained,
        extra=_accuracies(evidence, decision),
        labels=labelled.facts(),
        metric=evidence.measure.name,
        reference_score=reference,
        expected_score=reference + 100 * decision.gain,
        gain_same_readout=100 * decision.gain_same_readout,
        candidates=int(evidence.defined.sum()),
        tied_candidates=int(decision.tied.sum()),
        label_free=without,
        conventions=_conventions(opened, evidence, facts),
        table=score_rows(evidence, weighed, decision),
    )


def _accuracies(evidence: Evidence, decision: Decision) -> dict[str, Any]:
    """For classes, how often the cross-validated probe is right; the chosen one's flatters, since these examples chose it."""
    if evidence.accuracy is None:
        return {}
    found = {"accuracy": evidence.accuracy[decision.chosen], "reference_accuracy": evidence.accuracy[evidence.reference]}
    return {name: 100 * float(value) for name, value in found.items()}


def score_rows(evidence: Evidence, weighed: Weighed, decision: Decision) -> pd.DataFrame:
    """One row per readout and layer, the best first, in points."""
    reference = evidence.reference
    gain = weighed.score - weighed.score[reference]
    drawn = weighed.drawn_score - weighed.drawn_score[reference]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a candidate that is undefined has no error either
        errors = {"se": np.nanstd(weighed.drawn_score, axis=-1), "gain_se": np.nanstd(drawn, axis=-1)}
    rows = []
    for r, readout in enumerate(evidence.readouts):
        for k, layer in enumerate(evidence.layers):
            numbers = {
                "score": weighed.score[r, k],
                "se": errors["se"][r, k],
                "gain": gain[r, k],
                "gain_se": errors["gain_se"][r, k],
            }
            place = {"layer": layer, "site": site_of(layer), "readout": readout.name, **asdict(readout)}
            numbers["smoothed"] = weighed.value[r, k]
            if evidence.accuracy is not None:
                numbers["accuracy"] = evidence.accuracy[r, k]
            points = {name: 100 * float(value) for name, value in numbers.items()}
            rows.append({**place, **points, "tied": bool(decision.tied[r, k])})
    return pd.DataFrame(rows).sort_values("smoothed", ascending=False, na_position="last", ignore_index=True, kind="stable")


def _reason(evidence: Evidence, decision: Decision, labelled: Labelled) -> str:
    best_readout, best_layer = evidence.readouts[decision.best[0]].name, evidence.layers[decision.best[1]]
    compared = f"{int(evidence.defined.sum())} layers and readouts on {len(labelled)} examples"
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


def _notes(labelled: Labelled, opened: Opened, decision: Decision, facts: dict[str, Any]) -> list[str]:
    out = list(labelled.warnings)
    for template, cut in facts["truncated"].items():
        if cut:
            out.append(f"{cut} of {facts['texts']} texts were cut to {opened.max_length} tokens under template {template!r}.")
    if opened.identity.get("quantisation"):
        out.append(f"the weights were quantised ({opened.identity['quantisation']}) in their source.")
    if decision.low < 0 < decision.gain:
        out.append("the gain is not certain: its interval includes 0. More labels would tell.")
    if facts["budget"] is not None and decision.gain < 0:
        out.append("within this budget no layer is expected to reach the last layer under the default readout.")
    return out


def _conventions(opened: Opened, evidence: Evidence, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "reference": "the last layer under the default readout, plain/mean/applied/keep/none",
        "score": _SCORES[evidence.measure.name],
        "gain": "chosen anew without a third of the examples, measured on that third; mean over all rounds",
        "tied": "against the largest error of all candidates under the bootstrap, 95 % together",
        "centering": "the mean over the given texts is subtracted",
        "unit_length": opened.unit,
        "max_length": opened.max_length,
        **{name: facts[name] for name in ("folds", "seed", "budget", "tolerance", "texts", "encoded")},
    }
