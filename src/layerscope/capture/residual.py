"""Check on real states that a family's declared sub-sites are what they claim to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from layerscope.capture.anatomy import Anatomy
from layerscope.capture.hooks import Capture
from layerscope.capture.sites import expand_sites
from layerscope.errors import ModelError

# Half-precision models round every sum; the identity is about structure, and a wrong branch is wrong by 100 %.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def check_residual(anatomy: Anatomy, forward: Callable[[], Any]) -> float | None:
    """Run one pass and check x + attn + mlp = y (and mid = x + attn) in every block, as `anatomy.residual` says.

    Returns the largest relative error, or None for families without a plain identity (post-norm). Raises `ModelError` naming the
    block where it fails, so that no result is computed from a mislabelled site.
    """
    if anatomy.residual not in ("sequential", "parallel", "single"):
        return None
    sites = expand_sites(["embed", "block.*", "block.*.*"], anatomy)
    states: dict[str, Tensor] = {}
    worst = 0.0

    def compare(name: str, got: Tensor, expected: Tensor) -> None:
        nonlocal worst
        error = float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        worst = max(worst, error)
        if not error <= _TOLERANCE.get(states["x"].dtype, 0.05):
            raise ModelError(
                f"the residual identity does not hold at {name} (relative error {error:.1e}): the {anatomy.family} family's "
                "sub-sites do not describe this model. Use the default sites (embed, block.*), or another --family."
            )

    def on_state(index: int, raw: Tensor, _state: Tensor) -> None:
        site = sites[index]
        if site.block is None:
            states["x"] = raw.clone()
            return
        if site.part is not None:
            states[site.part] = raw.clone()
            return
        branches = states["attn"] + states["mlp"] if "mlp" in states else states["attn"]
        if "mid" in states:
            compare(f"block.{site.block}.mid", states["mid"].double(), states["x"].double() + states["attn"].double())
        compare(site.name, raw.double(), states["x"].double() + branches.double())
        states.clear()
        states["x"] = raw.clone()

    with Capture(anatomy, sites, "raw", on_state) as capture:
        capture.run(forward)
    return worst
