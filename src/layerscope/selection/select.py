"""The public function `select`: the Python twin of `layerscope select`. With labels it is `select_with_labels`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerscope.selection.choice import Choice
from layerscope.selection.choose import choose


def select(
    *runs: Any,
    atlas: str | None = None,
    rule: str | None = None,
    readouts: str | Sequence[str] | None = None,
    budget: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Choice:
    """Choose the layer to read embeddings from: by a profile or by measured scores.

    - `runs`: folders of finished runs, or `Profile` or `Evaluation` objects. With an evaluation among them, the measured scores
      decide (rule `measured`). With a profile alone the choice is label-free, by the rule `evidence` unless `rule` names another.
    - `atlas`: a published model, instead of `runs`.
    - `budget`: the share of the blocks that may run. `tolerance`: the points of score to give up for an earlier layer.

    A file of labeled examples decides in `select_with_labels`.

    >>> select(atlas="Pythia-410m", rule="fixed_depth").layer
    19
    """
    return choose(*runs, atlas=atlas, rule=rule, readouts=readouts, budget=budget, tolerance=tolerance, seed=seed)
