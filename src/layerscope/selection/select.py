"""The public function `select`: the Python twin of `layerscope select`, with and without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerscope.errors import LayerscopeError
from layerscope.selection.choice import Choice
from layerscope.selection.choose import choose


def select(
    *runs: Any,
    atlas: str | None = None,
    rule: str | None = None,
    labels: str | Path | None = None,
    readouts: str | Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    folds: int = 5,
    max_length: int | None = None,
    batch_size: int | None = None,
    store: str | Path | None = None,
    offline: bool = False,
    progress: bool | None = None,
) -> Choice:
    """Choose the layer to read embeddings from: by a profile, by measured scores, or by a few labels.

    - `runs`: folders of finished runs, or `Profile` or `Evaluation` objects. With an evaluation among them, the measured scores
      decide (rule `measured`). With a profile alone the choice is label-free, by the rule `evidence` unless `rule` names another.
    - `atlas`: a published model, instead of `runs`.
    - `budget`: the share of the blocks that may run. `tolerance`: the points of score to give up for an earlier layer.
    - `labels`: a csv, tsv or jsonl file of labeled examples. `runs` is then one model (name, folder, hub id, loaded) or the
      folder of one run, and the result a `LabeledChoice`.

    `layers`, `folds`, `max_length`, `batch_size`, `store`, `offline` and `progress` are used with labels only.

    >>> select(atlas="Pythia-410m", rule="fixed_depth").layer
    19
    """
    if labels is None:
        return choose(*runs, atlas=atlas, rule=rule, readouts=readouts, budget=budget, tolerance=tolerance, seed=seed)
    if len(runs) != 1 or atlas is not None or rule is not None:
        raise LayerscopeError("labels take one model or the folder of one run, without atlas and rule.")
    from layerscope.selection.labels import select_with_labels  # needs torch, which the rest does not

    return select_with_labels(
        runs[0],
        labels,
        layers=layers,
        readouts=readouts,
        folds=folds,
        seed=seed,
        offline=offline,
        progress=progress,
        budget=budget,
        tolerance=tolerance,
        max_length=max_length,
        batch_size=batch_size,
        store=store,
    )
