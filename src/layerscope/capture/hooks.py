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

OnState = Callable[[int, Tensor, Tensor], None]
OnRaw = Callable[[int, Tensor, nn.Module], bool]


class _PassDone(Exception):
    """Raised inside the last hook: nothing reads what the rest of the forward pass would
    compute."""


class Capture:
    """Reads states at sites during forward passes; hooks are removed whatever happens.

    `on_state(i, raw, state)` is called for site i with the state as the block left it and as
    `final_norm` asks for it: `applied` norms every state of the residual stream with the model's
    final norm, `raw` none, `hf` the last layer only (what `output_hidden_states` returns: of most
    some models it is raw there too). Branches and norms inside blocks are always raw. `on_raw(i,
    raw, norm)`, if given, is asked first where a norm is to be applied: True says that it needs no
    normed state. One thread at a time may read a model.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        on_state: OnState,
        on_raw: OnRaw | None = None,
    ) -> None:
        if final_norm not in FINAL_NORMS:
            raise ValueError(
                f"final_norm must be one of {', '.join(FINAL_NORMS)}, not {final_norm!r}"
            )
        self.anatomy, self.sites, self.final_norm, self.on_state = (
            anatomy,
            list(sites),
            final_norm,
            on_state,
        )
        self.on_raw = on_raw
        self._handles: list[RemovableHandle] = []
        self._unread: set[int] = set()
        self._is_running = False

    def __enter__(self) -> Self:
        try:
            for index, site in enumerate(self.sites):
                self._handles.append(self._register(index, site))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._remove()

    def run(self, forward: Callable[[], Any]) -> None:
        """Run one forward pass; it ends as soon as every site has been read."""
        self._unread = set(range(len(self.sites)))
        try:
            with torch.inference_mode():
                self._is_running = True
                forward()
        except _PassDone:
            return
        finally:
            self._is_running = False
        missing = ", ".join(self.sites[i].name for i in sorted(self._unread)[:5])
        raise ModelError(
            f"the forward pass never reached {missing}: the {self.anatomy.family} family does not describe this model."
        )

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _register(self, index: int, site: Site) -> RemovableHandle:
        tap = _tap(self.anatomy, site)

        def read(*found: Any) -> None:
            if self._is_running:
                states = first_tensor(*found)
                self._read(index, states if tap.scale is None else states * tap.scale)

        def before(_module: nn.Module, given: Any, named: Any) -> None:
            read(given, named)

        def after(_module: nn.Module, _given: Any, output: Any) -> None:
            read(output)

        for hook in (before, after):
            setattr(hook, "only_reads", True)  # noqa: B010 - what comes after may rely on the states (kernels do)
        if tap.side == "input":
            return tap.module.register_forward_pre_hook(before, with_kwargs=True)
        return tap.module.register_forward_hook(after)

    def _read(self, index: int, raw: Tensor) -> None:
        norm = self._norm_at(self.sites[index])
        if norm is None:
            self.on_state(index, raw, raw)
        elif self.on_raw is None or not self.on_raw(index, raw, norm):
            self.on_state(index, raw, apply_norm(norm, raw))
        self._unread.discard(index)
        if not self._unread:
            raise _PassDone

    def _norm_at(self, site: Site) -> nn.Module | None:
        if self.final_norm == "raw" or not site.in_stream:
            return None
        last = site.part is None and site.layer == self.anatomy.n_blocks
        if self.final_norm == "hf" and not (last and self.anatomy.hf_norms_last):
            return None
        return self.anatomy.final_norm


class Reduction:
    """What reads states through a `Capture`; its hooks are there inside `with`."""

    _capture: Capture

    def __enter__(self) -> Self:
        self._capture.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._capture.__exit__()


def apply_norm(norm: nn.Module, states: Tensor) -> Tensor:
    """The norm of some states, on the device where its weights are (they may be spread over
    several)."""
    parameter = next(norm.parameters(), None)
    if (
        parameter is not None
        and parameter.device != states.device
        and parameter.device.type != "meta"
    ):
        return norm(states.to(parameter.device)).to(states.device)
    return norm(states)


def first_tensor(*sources: Any) -> Tensor:
    """The hidden states among a module's arguments or outputs: the first tensor found."""
    for source in sources:
        if isinstance(source, Tensor):
            return source
        values = (
            source.values()
            if isinstance(source, dict)
            else source
            if isinstance(source, (tuple, list))
            else ()
        )
        if isinstance(source, dict) and isinstance(source.get("hidden_states"), Tensor):
            return source["hidden_states"]
        for value in values:
            if isinstance(value, Tensor):
                return value
    raise RuntimeError(
        "a hooked module received or returned no tensor: this family does not describe the model. Give another one with family="
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
    worst = 0.0

    def compare(name: str, got: Tensor, expected: Tensor) -> None:
        nonlocal worst
        error = float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        worst = max(worst, error)
        if not error <= _RESIDUAL_TOLERANCE.get(states["x"].dtype, 0.05):
            raise ModelError(
                f"the residual identity does not hold at {name} (relative error {error:.1e}): the {anatomy.family} family's "
                "sub-sites do not describe this model. Use the default sites (embed, block.*), or another family=."
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
            compare(
                f"block.{site.block}.mid",
                states["mid"].double(),
                states["x"].double() + states["attn"].double(),
            )
        compare(site.name, raw.double(), states["x"].double() + branches.double())
        states.clear()
        states["x"] = raw.clone()

    with Capture(anatomy, sites, "raw", on_state) as capture:
        capture.run(forward)
    return worst
