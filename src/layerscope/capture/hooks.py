"""The parts of a model, the sites that it therefore has, and the states at sites, read inside the
hooks of one forward pass: no layer's states outlive their own hook. Nothing here knows names or
files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layerscope.core.sites import DEFAULT_SITES, PARTS, Site
from layerscope.errors import LayerscopeError, ModelError, UnknownNameError

__all__ = ["apply_norm", "first_tensor"]

_PATTERN = re.compile(r"block\.(\*|\d+)(?:\.(\*|[a-z0-9]+))?$")

Residual = Literal["sequential", "parallel", "post-norm", "single", "unknown"]


@dataclass(frozen=True)
class Tap:
    """A point where states can be read: the input or the output of a module.

    `scale` multiplies what is read: a layer scale that the block applies by itself, outside any
    module.
    """

    module: nn.Module
    side: Literal["input", "output"] = "output"
    scale: Tensor | float | None = None


@dataclass(frozen=True)
class Anatomy:
    """The parts of one loaded model.

    `taps[k]` maps the sub-sites of block k (`attn`, `mid`, `mlp`, `norm1`, `norm2`) to where they
    are read. `attn` and `mlp` are the branches *as they are added to the residual stream* (after
    any post-norm or layer scale).

    `residual` says which identity the block obeys, with x its input and y its output: sequential:
    mid = x + attn, y = mid + mlp; parallel: y = x + attn + mlp (no `mid`); single: y = x + attn
    (Mamba's mixer counts as `attn`; no `mid`, no `mlp`); post-norm: `mid` and y are norms of the
    sums (BERT), no plain identity; unknown: not checked.

    `hf_norms_last` says whether `output_hidden_states` has the final norm in its last entry
    (language models do).
    """

    family: str
    blocks: Sequence[nn.Module]
    final_norm: nn.Module | None
    taps: Sequence[Mapping[str, Tap]] = field(default_factory=list)
    residual: Residual = "unknown"
    hf_norms_last: bool = True

    @property
    def final_norm_name(self) -> str | None:
        """The class of the final norm; None where the model has none."""
        return None if self.final_norm is None else type(self.final_norm).__name__

    @property
    def n_blocks(self) -> int:
        """Number of blocks L; layers run from 0 (embed) to L."""
        return len(self.blocks)


def expand_sites(patterns: Iterable[str] | None, anatomy: Anatomy) -> list[Site]:
    """Return sites from names and patterns, in the order in which a forward pass meets them.

    >>> from torch import nn
    >>> model = Anatomy("toy", [nn.Identity(), nn.Identity()], None)
    >>> [site.name for site in expand_sites(["embed", "block.*"], model)]
    ['embed', 'block.0', 'block.1']
    """
    count = anatomy.n_blocks
    sites_by_name: dict[str, Site] = {}
    for pattern in patterns if patterns is not None else DEFAULT_SITES:
        for site in _expand(pattern.strip(), anatomy, count):
            sites_by_name[site.name] = site
    if not sites_by_name:
        raise LayerscopeError(
            "no sites were chosen. Valid: embed, block.K or block.* (every block), block.*.attn "
            "and so on."
        )
    return sorted(sites_by_name.values(), key=_pass_order)


def _pass_order(site: Site) -> tuple[int, int]:
    if site.block is None:
        return -1, 0
    return site.block, PARTS.index(site.part) if site.part else len(PARTS)


def _expand(pattern: str, anatomy: Anatomy, count: int) -> list[Site]:
    if pattern == "embed":
        return [Site("embed", 0, 0.0)]
    match = _PATTERN.match(pattern)
    if match is None:
        valid = ["embed", "block.*", *(f"block.*.{part}" for part in PARTS)]
        raise UnknownNameError(
            "site", pattern, valid, hint="A number in place of * means that block, counted from 0."
        )
    number, name = match.groups()
    if number != "*" and int(number) >= count:
        raise LayerscopeError(
            f"site {pattern!r}: this model has {count} blocks, block.0 to block.{count - 1}."
        )
    blocks = range(count) if number == "*" else [int(number)]
    if name is None:
        return [Site(f"block.{k}", k + 1, (k + 1) / count, block=k) for k in blocks]
    present = [p for p in PARTS if any(p in taps for taps in anatomy.taps)]
    if name != "*" and name not in present:
        if name not in PARTS:
            raise UnknownNameError("part of a block", name, present or PARTS)
        raise LayerscopeError(
            f"site {pattern!r}: this model has no {name!r} state, or its family "
            f"({anatomy.family}, {anatomy.residual} blocks) does not say where. Valid here: "
            f"{', '.join(present) or 'no parts of blocks'}."
        )
    names = present if name == "*" else [name]
    return [
        Site(f"block.{k}.{p}", k + 1, (k + 0.5) / count, block=k, part=p)
        for k in blocks
        for p in names
        if p in anatomy.taps[k]
    ]


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
            # what comes after may rely on the states, as kernels do
            setattr(hook, "only_reads", True)  # noqa: B010
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
