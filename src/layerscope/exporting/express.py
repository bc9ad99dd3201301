"""Which readouts standard sentence-transformers modules can express, and the nearest one where they cannot."""

from __future__ import annotations

from dataclasses import replace

from layerscope.core.readout import Readout, get_template
from layerscope.errors import LayerscopeError


class ExportError(LayerscopeError):
    """A model or readout that cannot be exported, or an export that does not give back what was measured."""


POOLING_MODES = {
    "mean": "mean_tokens",
    "wmean": "weightedmean_tokens",
    "last": "lasttoken",
    "cls": "cls_token",
    "max": "max_tokens",
}
"""Our poolings by the name sentence-transformers' Pooling gives them in its config, as `pooling_mode_NAME`."""


def why_not(readout: Readout) -> str | None:
    """The reason why a readout needs custom code, or None where standard modules express it.

    >>> why_not(Readout("one-word", "last", "raw")) is None
    True
    """
    template = get_template(readout.template)
    if template.copies > 1:
        return (
            f"template {template.name!r} repeats the text {template.copies} times, and a tokenizer can add words around a text "
            "but not repeat it"
        )
    if readout.sink == "drop":
        return "leaving out the token with the largest norm is not among the standard poolings"
    return None


def nearest(readout: Readout) -> Readout:
    """The expressible readout that differs least: the sink kept, and the text once instead of several times.

    >>> nearest(Readout("echo", "mean", "raw", "drop", "corpus")).name
    'plain/mean/raw/keep/corpus'
    """
    template = readout.template if get_template(readout.template).copies == 1 else "plain"
    return replace(readout, template=template, sink="keep")


def check_expressible(readout: Readout) -> None:
    """Refuse a readout that needs custom code, naming the nearest that does not."""
    reason = why_not(readout)
    if reason is not None:
        raise ExportError(
            f"readout {readout.name!r} cannot be exported without custom code: {reason}. "
            f"The nearest that can: --readout {nearest(readout).name}"
        )
