"""`select_with_labels`: which layer and readout of a model serve best, told by a few labeled
examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.core.candidates import ScoredCandidates
from layerscope.core.sites import site_of
from layerscope.core.statistics import Interval
from layerscope.models import LoadedModel
from layerscope.progress import progress_bar
from layerscope.selection.choice import Choice
from layerscope.selection.labels.decide import LabelEvidence, decide, gather, score_candidates
from layerscope.selection.labels.read import Labeled, read_labels
from layerscope.selection.labels.source import (
    LabeledVectors,
    Opened,
    encode_texts,
    open_source,
)
from layerscope.vectors import VectorStore

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
    decided: Choice,
    facts: dict[str, Any],
) -> Choice:
    """The decision with everything it rests on.

    `metric`, `before` and `after` are the user's own measure (accuracy, average precision or
    Spearman), cross-validated on all examples, for the last layer under the default readout and for
    the choice; the latter flatters a little, since these examples chose it. The decision follows a
    finer measure: `extra` has its name as `judged_by`, what it gives the last layer under the
    default readout as `reference_score`, and that plus the expected gain as `expected_score`.
    `table` has every
    candidate's score with its standard error, the smoothed score that the choice followed, and
    whether it is tied.
    """
    at, reference = decided.extra["at"], 100 * float(scored.score[evidence.reference])
    plain = 100 * (scored.score if evidence.accuracy is None else evidence.accuracy)
    before, after = float(plain[evidence.reference]), float(plain[at])
    assert decided.gain is not None
    more = {
        "labels": labeled.facts(),
        "judged_by": evidence.measure.name,
        "reference_score": reference,
        "expected_score": reference + decided.gain.value,
        "conventions": _conventions(opened, evidence, facts),
        **({} if evidence.accuracy is None else {"accuracy": after, "reference_accuracy": before}),
    }
    return replace(
        decided,
        layers=opened.model.n_blocks,
        model=opened.model.name,
        warnings=tuple(_notes(labeled, opened, decided.gain, facts)),
        metric=_METRICS[evidence.measure.name],
        before=before,
        after=after,
        identity=dict(opened.model.identity),
        source=None if opened.run is None else str(opened.run),
        max_length=opened.max_length,
        unit_length=opened.unit,
        center_on=str(facts["labels"]) if evidence.readouts[at[0]].centering != "none" else None,
        extra={**{name: decided.extra[name] for name in ("candidates", "tied_candidates")}, **more},
    )


def _notes(labeled: Labeled, opened: Opened, gain: Interval, facts: dict[str, Any]) -> list[str]:
    out = list(labeled.warnings)
    for template, cut in facts["truncated"].items():
        if cut:
            out.append(
                f"{cut} of {facts['texts']} texts were cut to {opened.max_length} tokens under template {template!r}."
            )
    out += opened.model.warnings()
    if gain.low < 0 < gain.value:
        out.append("the gain is not certain: its interval includes 0. More labels would tell.")
    if facts["max_blocks"] is not None and gain.value < 0:
        out.append(
            "within max_blocks= no layer is expected to reach the last layer under the default readout."
        )
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
        **{
            name: facts[name]
            for name in ("folds", "seed", "max_blocks", "tolerance", "texts", "encoded")
        },
    }


def select_with_labels(
    model: str | Path | LoadedModel,
    labels: str | Path,
    *,
    layers: Sequence[int] | None = None,
    readouts: str | Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    offline: bool = False,
    progress: bool | None = None,
    max_blocks: float | None = None,
    tolerance: float | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    store: str | Path | None = None,
    store_size: int | None = 10 * 2**30,
) -> Choice:
    """Choose a layer and readout with labeled examples.

    `model` is a model (name, folder, hub id, loaded) or the folder of a profile or evaluation.
    `labels` is a csv, tsv or jsonl file with the columns `text,label`, `sentence1,sentence2,label`
    or `sentence1,sentence2,score`. All layers and readouts (templates included) are compared unless
    some are named. `max_blocks` is the largest share of the blocks to run; `tolerance`, in points
    (1 where only `max_blocks` is given), takes the earliest layer that comes so near to the best.
    """
    labeled = read_labels(labels)
    opened = open_source(model, max_length, offline)
    chosen_layers, texts = opened.layers(layers), labeled.texts
    embeddings = VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size)
    grid = opened.readouts(readouts)
    sites = [
        site for site in expand_sites(None, opened.model.anatomy) if site.layer in chosen_layers
    ]
    with progress_bar(progress) as bar:
        spaces, facts = encode_texts(
            opened.model, texts, grid, sites, embeddings, opened.max_length, bar, batch_size
        )
        vectors = LabeledVectors(
            spaces, texts, [site_of(layer) for layer in chosen_layers], opened.unit
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
    scored = score_candidates(evidence, seed=seed)
    decided = decide(evidence, scored, max_blocks, tolerance)
    settings = {
        "labels": labels,
        "folds": folds,
        "seed": seed,
        "max_blocks": max_blocks,
        "tolerance": tolerance,
    }
    return make_choice(labeled, opened, evidence, scored, decided, {**facts, **settings})
