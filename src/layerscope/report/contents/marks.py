"""The layer of each model that a report points out: what a selection chose, or else what labelled scores say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerscope.errors import LayerscopeError
from layerscope.report.contents.sources import Curves, Mark, Scores


def marks(curves: Sequence[Curves], scores: Sequence[Scores], choices: Sequence[Any] = ()) -> list[Mark]:
    """One mark per model: a choice that was given, or the one that its evaluation or its profile leads to."""
    out: dict[str, Mark] = {}
    blocks = {run.model: run.n_blocks for run in curves} | {run.model: run.n_blocks for run in scores}
    for choice in choices:
        model = choice.model or next(iter(blocks))
        if model not in blocks:
            raise LayerscopeError(f"the choice is about {model}, which is none of the runs: {', '.join(blocks)}.")
        out.setdefault(model, _mark(choice, model, blocks[model]))
    for score in scores:
        if score.model not in out and (found := _of_scores(score)) is not None:
            out[score.model] = found
    # the final norm hides the valley that label-free rules look at: other profiles of the model are asked first
    for curve in sorted(curves, key=lambda c: c.final_norm == "applied"):
        if curve.model not in out and curve.run is not None and (found := _select(curve.run)) is not None:
            out[curve.model] = _mark(found, curve.model, curve.n_blocks)
    return list(out.values())


def best_layer(score: Scores, readout: str) -> int | None:
    """The layer with the highest mean over tasks."""
    mean = score.mean(readout).dropna()
    return None if mean.empty else int(mean.index[int(mean.argmax())])


def _of_scores(score: Scores) -> Mark | None:
    chosen = None if score.run is None else _select(score.run, readout=score.reference)
    if chosen is not None:
        return _mark(chosen, score.model, score.n_blocks)
    best = best_layer(score, score.reference)
    if best is None:
        return None
    text = f"best by mean score over {score.mean_says}" if len(score.tasks) > 1 else f"best on {score.tasks[0]}"
    return Mark(score.model, best, score.n_blocks, "best", text, score.reference)


def _select(run: Any, **options: Any) -> Any:
    """What a selection makes of a run; None where it cannot tell (a curve is missing, an evaluation of one layer)."""
    from layerscope.selection import select

    try:
        return select(run, **options)
    except LayerscopeError:
        return None


def _mark(choice: Any, model: str, n_blocks: int) -> Mark:
    gain = {name: getattr(choice, name, None) for name in ("expected_gain", "ci_low", "ci_high", "risk_of_loss")}
    return Mark(
        model, int(choice.layer), n_blocks, "chosen", str(choice.reason), choice.readout, str(choice.rule),
        [str(w) for w in choice.warnings], abstained=bool(getattr(choice, "abstained", False)), **gain,
    )  # fmt: skip
