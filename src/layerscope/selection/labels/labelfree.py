"""The answer without labels, for comparison: from the profile that was given, where one was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerscope.errors import LayerscopeError


def label_free_answer(run: Path | None) -> dict[str, Any] | None:
    """Layer and expected gain of the label-free rule on a profile; None where there is no profile to apply it to."""
    if run is None or not (run / "profile.parquet").is_file():
        return None
    from layerscope.selection.select import select

    try:
        found = select(run)
    except LayerscopeError as error:
        return {"layer": None, "reason": str(error)}
    return {name: getattr(found, name) for name in ("layer", "rule", "expected_gain", "ci_low", "ci_high", "abstained")}
