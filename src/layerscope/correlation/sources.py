"""Where the two tables come from: the atlas, or a profile and an evaluation of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT, Readout, readout_names
from layerscope.core.sites import whole_layers
from layerscope.errors import LayerscopeError, UnknownNameError

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Run

_SAME_MODEL = ("weights_sha256", "settings_sha256", "bidirectional", "adapters", "dtype")


@dataclass
class Tables:
    """Metrics and scores of one model, ready for `correlate`; what they are, and what a reader must know."""

    metrics: pd.DataFrame
    scores: pd.DataFrame
    facts: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def from_atlas(model: str, convention: str = "english", metrics_on: str | None = None) -> Tables:
    """Published metrics and scores. `metrics_on`: `mteb` (each task's own dataset) or `wikitext`; None: mteb where there is."""
    from layerscope import atlas

    known = atlas.find_model(model)
    scores = atlas.select_scores(known, convention)
    if metrics_on not in (None, "mteb", "wikitext"):
        raise UnknownNameError("place of the metrics", str(metrics_on), ["mteb", "wikitext"])
    values = atlas.metric_values(known)
    on_mteb = values["dataset"].str.startswith("mteb/")
    # one dataset is no basis for a mean over tasks
    where = metrics_on or ("mteb" if values.loc[on_mteb, "dataset"].nunique() > 5 else "wikitext")
    values = values[on_mteb if where == "mteb" else values["dataset"] == "wikitext"]
    if values.empty:
        raise LayerscopeError(f"the atlas has no metrics of {known.name} on {where}.")
    facts = {"model": known.name, "source": "atlas", "convention": convention, "metrics_on": where}
    notes = []
    if not known.family.startswith("bert"):
        notes.append(
            "metrics: final norm at the last layer only; scores: at every layer. They describe different vectors below it."
        )
    if (where == "mteb" and known.family.startswith("LLM2Vec")) or (values["split"] == "train(unrecorded)").any():
        notes.append("these metrics are from the older generation of the released code.")
    return Tables(values[["metric", "task", "layer", "value"]], scores[["task", "layer", "score"]], facts, notes)


def from_runs(run: Run, evaluation: Evaluation, readout: str = DEFAULT_READOUT, sink: str = "keep") -> Tables:
    """A profile's curves and an evaluation's scores, of the same model."""
    _check_same(run, evaluation)
    held = evaluation.scores
    names = pd.Series(readout_names(held), index=held.index)
    if sink not in ("keep", "drop"):
        raise UnknownNameError("sink setting", sink, ["keep", "drop"])
    if readout not in set(names):
        raise UnknownNameError("readout of this evaluation", readout, set(names))
    # subsets of a task are one score of it
    scores = held[names == readout].groupby(["task", "layer"])["score"].mean().reset_index()
    curves = whole_layers(run.table[run.table["normalization"] == "raw"])
    has_it = set(curves.loc[curves["sink"] == sink, "metric"])  # metrics over prompts know no sink
    curves = curves[(curves["sink"] == sink) | ~curves["metric"].isin(has_it)]
    norms = {"metrics": run.manifest["conventions"]["final_norm"], "scores": Readout.parse(readout).final_norm}
    facts = {"model": run.name, "source": "runs", "readout": readout, "sink": sink, "final_norm": norms}
    notes = []
    has_norm = run.manifest["conventions"].get("final_norm_module") is not None
    if has_norm and norms["metrics"] != norms["scores"]:
        notes.append(
            f"the metrics were taken with final_norm={norms['metrics']}, the scores with {norms['scores']}: the same layer is a "
            "different vector in the two. Profile with --final-norm " + norms["scores"] + " to compare like with like."
        )
    return Tables(curves[["metric", "layer", "value"]].reset_index(drop=True), scores, facts, notes)


def _check_same(run: Run, evaluation: Evaluation) -> None:
    mine, theirs = run.manifest["model"], evaluation.manifest["model"]
    for key in _SAME_MODEL:
        if key in mine and key in theirs and mine[key] != theirs[key]:  # runs of an earlier version may not say
            raise LayerscopeError(
                f"the profile is of {mine.get('name')} and the evaluation of {theirs.get('name')}, and their {key} differ "
                f"({_short(mine.get(key))} and {_short(theirs.get(key))}). Give two runs of the same model."
            )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 16 else text[:12] + "…"
