"""The steps of a block: from which state to which, as the block's residual structure has them."""

from __future__ import annotations

from dataclasses import dataclass

from layerscope.capture import Anatomy

STREAM = "stream"  # the block's input
OUTPUT = "output"  # its output


@dataclass(frozen=True)
class Step:
    """One step: its name, the state it starts from and the one it ends with; `kind` is branch, norm, sum or back.

    `sum` goes along the residual stream; `back` compares the same sum with the branch that is added to it.
    """

    name: str
    start: str
    end: str
    kind: str


def block_steps(parts: set[str], residual: str) -> list[Step]:
    """The steps among the sub-sites that a block has.

    >>> [step.name for step in block_steps({"norm1", "attn"}, "single")]
    ['norm', 'mixer', 'residual sum', 'mixer → sum']
    """
    single = residual == "single"
    attention = "mixer" if single else "attention"
    summed = "sum and norm" if residual == "post-norm" else "residual sum"
    both = "mid" in parts
    steps = []
    if "norm1" in parts:
        steps.append(Step("norm" if single else "norm before attention", STREAM, "norm1", "norm"))
    if "attn" in parts:
        steps.append(Step(attention, "norm1" if "norm1" in parts else STREAM, "attn", "branch"))
    if both:
        steps.append(Step(f"{summed} after attention", STREAM, "mid", "sum"))
        if "attn" in parts:
            steps.append(Step("attention → sum", "attn", "mid", "back"))
    before = "mid" if both else STREAM
    if "norm2" in parts:
        steps.append(Step("norm before MLP", before, "norm2", "norm"))
    if "mlp" in parts:
        steps.append(Step("MLP", "norm2" if "norm2" in parts else before, "mlp", "branch"))
    steps.append(Step(f"{summed} after MLP" if both else summed, before, OUTPUT, "sum"))
    if "attn" in parts and not both:
        steps.append(Step(f"{attention} → sum", "attn", OUTPUT, "back"))
    if "mlp" in parts:
        steps.append(Step("MLP → sum", "mlp", OUTPUT, "back"))
    return steps


def site_of(state: str, block: int) -> str:
    """The name of a site from a state of a block."""
    if state == STREAM:
        return "embed" if block == 0 else f"block.{block - 1}"
    return f"block.{block}" if state == OUTPUT else f"block.{block}.{state}"


def what_is_missing(anatomy: Anatomy) -> list[str]:
    """In words, the sub-sites that this model does not have, and why."""
    have = {part for taps in anatomy.taps for part in taps}
    told = []
    if anatomy.residual == "parallel":
        told.append("attention and MLP read the same input and are added at once: there is no state between them (`mid`).")
    elif anatomy.residual == "single":
        told.append("blocks have a single branch (a mixer, read as `attn`): there is no MLP and no state between two sums.")
    elif anatomy.residual == "post-norm":
        told.append("the norm comes after each sum, so `mid` and the block's output are normed; branches read them as they are.")
    missing = [part for part in ("attn", "mid", "mlp", "norm1", "norm2") if part not in have]
    if missing and not told:
        told.append(f"not measured, as this model has none: {', '.join(missing)}.")
    return told
