"""States read inside the hooks of one forward pass, so that no layer's states outlive their own
hook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layerscope.capture.anatomy import Anatomy, Tap, expand_sites
from layerscope.core.sites import Site
from layerscope.errors import ModelError

__all__ = ["apply_norm", "first_tensor"]

FinalNorm = Literal["applied", "raw", "hf"]
FINAL_NORMS: tuple[FinalNorm, ...] = get_args(FinalNorm)

# Half-precision models round every sum; the identity is about structure, and a wrong branch is
# wrong by 100 %.
_RESIDUAL_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

Read = Callable[[int, Tensor, nn.Module | None], None]
"""`read(i, raw, norm)` is called with the state of site i as the block left it, and with the norm
that `final_norm` asks for there (see `apply_norm`)."""


class _PassDone(Exception):
    """Raised inside the last hook: nothing reads what the rest of the forward pass would
    compute."""


class Capture:
    """Reads states at sites during forward passes; hooks are removed whatever happens.

    `final_norm` says which states are read under the model's final norm: `applied` every state of
    the residual stream, `raw` none, `hf` the last layer only (what `output_hidden_states` returns:
    of some models it is raw there too). Branches and norms inside blocks are always raw. One thread
    at a time may read a model.
    """

    def __init__(self, anatomy: Anatomy, sites: Sequence[Site], final_norm: FinalNorm) -> None:
        if final_norm not in FINAL_NORMS:
            raise ValueError(
                f"final_norm must be one of {', '.join(FINAL_NORMS)}, not {final_norm!r}"
            )
        self.anatomy = anatomy
        self.sites = list(sites)
        self.final_norm = final_norm
        self._handles: list[RemovableHandle] = []
        self._on_state: Callable[[int, Tensor], None] | None = None

    def __enter__(self) -> Self:
        try:
            for index, site in enumerate(self.sites):
                self._handles.append(self._register(index, site))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def run(self, forward: Callable[[], Any], read: Read) -> None:
        """Run one forward pass; it ends as soon as every site has been read."""
        norms = [self._norm_at(site) for site in self.sites]
        unread = set(range(len(self.sites)))

        def on_state(index: int, raw: Tensor) -> None:
            read(index, raw, norms[index])
            unread.discard(index)
            if not unread:
                raise _PassDone

        self._on_state = on_state
        try:
            with torch.inference_mode():
                forward()
        except _PassDone:
            return
        finally:
            self._on_state = None
        missing = ", ".join(self.sites[i].name for i in sorted(unread)[:5])
        raise ModelError(
            f"the forward pass never reached {missing}: the {self.anatomy.family} family does not "
            "describe this model."
        )

    def _register(self, index: int, site: Site) -> RemovableHandle:
        tap = _tap(self.anatomy, site)

        def read(*sources: Any) -> None:
            if self._on_state is not None:
                states = first_tensor(*sources)
                self._on_state(index, states if tap.scale is None else states * tap.scale)

        def before(_module: nn.Module, arguments: Any, named: Any) -> None:
            read(arguments, named)

        def after(_module: nn.Module, _arguments: Any, output: Any) -> None:
            read(output)

        for hook in (before, after):
            setattr(hook, "only_reads", True)  # noqa: B010 - what comes after may rely on the states (kernels do)
        if tap.side == "input":
            return tap.module.register_forward_pre_hook(before, with_kwargs=True)
        return tap.module.register_forward_hook(after)

    def _norm_at(self, site: Site) -> nn.Module | None:
        if self.final_norm == "raw" or not site.in_stream:
            return None
        is_last = site.part is None and site.layer == self.anatomy.n_blocks
        if self.final_norm == "hf" and not (is_last and self.anatomy.hf_norms_last):
            return None
        return self.anatomy.final_norm


def apply_norm(norm: nn.Module | None, states: Tensor) -> Tensor:
    """Return states under a norm, or as they are.

    The norm runs where its weights are: a model may be spread over several devices.
    """
    if norm is None:
        return states
    parameter = next(norm.parameters(), None)
    if parameter is None or parameter.device in (states.device, torch.device("meta")):
        return norm(states)
    return norm(states.to(parameter.device)).to(states.device)


def first_tensor(*sources: Any) -> Tensor:
    """Return the hidden states among a module's arguments or outputs: the first tensor."""
    for source in sources:
        if isinstance(source, Tensor):
            return source
        values: Sequence[Any] = ()
        if isinstance(source, dict):
            values = [source.get("hidden_states"), *source.values()]
        elif isinstance(source, (tuple, list)):
            values = source
        for value in values:
            if isinstance(value, Tensor):
                return value
    raise RuntimeError(
        "a hooked module received or returned no tensor: this family does not describe the model. "
        "Give another one with family="
    )


def _tap(anatomy: Anatomy, site: Site) -> Tap:
    if site.block is None:
        return Tap(anatomy.blocks[0], "input")
    if site.part is None:
        return Tap(anatomy.blocks[site.block], "output")
    return anatomy.taps[site.block][site.part]


def check_residual(anatomy: Anatomy, forward: Callable[[], Any]) -> float | None:
    """Run one pass and check x + attn + mlp = y (and mid = x + attn) in every block, as
    `anatomy.residual` says.

    Returns the largest relative error, or None for families without a plain identity (post-norm).
    Raises `ModelError` naming the block where it fails, so that no result is computed from a
    mislabeled site.
    """
    if anatomy.residual not in ("sequential", "parallel", "single"):
        return None
    sites = expand_sites(["embed", "block.*", "block.*.*"], anatomy)
    states: dict[str, Tensor] = {}
    errors: list[float] = []

    def compare(name: str, state: Tensor, expected: Tensor) -> None:
        difference = (state.double() - expected).abs().max()
        errors.append(float(difference / expected.abs().max().clamp(min=1e-30)))
        if not errors[-1] <= _RESIDUAL_TOLERANCE.get(state.dtype, 0.05):
            raise ModelError(
                f"the residual identity does not hold at {name} (relative error {errors[-1]:.1e}): "
                f"the {anatomy.family} family's sub-sites do not describe this model. Use the "
                "default sites (embed, block.*), or another family=."
            )

    def read(index: int, raw: Tensor, _norm: nn.Module | None) -> None:
        site = sites[index]
        if site.part is not None:
            states[site.part] = raw.clone()
            return
        if site.block is not None:
            before = states["x"].double()
            branches = states["attn"]
            if "mid" in states:
                compare(f"{site.name}.mid", states["mid"], before + branches.double())
            if "mlp" in states:
                branches = branches + states["mlp"]
            compare(site.name, raw, before + branches.double())
        states.clear()
        states["x"] = raw.clone()

    with Capture(anatomy, sites, "raw") as capture:
        capture.run(forward, read)
    return max(errors)
