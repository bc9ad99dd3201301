"""The same relative depth in every model."""

from __future__ import annotations

from layerscope.errors import LayerscopeError
from layerscope.selection.evidence import Evidence
from layerscope.selection.rules.base import Answer, Rule, register
from layerscope.selection.rules.last import nearest

DEFAULT = 0.8


@register("fixed_depth", "the layer at 80 % depth, or at another: fixed_depth:0.7", parameter=True)
def make(depth: float | None) -> Rule:
    """The rule for a depth between 0 and 1."""
    wanted = DEFAULT if depth is None else depth
    if not 0 <= wanted <= 1:
        raise LayerscopeError(f"a depth lies between 0 (embeddings) and 1 (last layer), not at {wanted:g}.")

    def choose(evidence: Evidence) -> Answer:
        return Answer(nearest(wanted, evidence.n_blocks), f"the layer at {wanted:.0%} depth; nothing was looked at.")

    return choose
