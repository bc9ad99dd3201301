"""The sink activation: its place, and edits of it inside the forward pass.

A sink activation is a layer, the tokens that are massive there, and the few features that carry
them (Sun et al. 2024). An edit changes the output of that layer's block in every forward pass; all
later layers are computed from the edited states. Three edits remove the sink. Three controls leave
it in place and change something else, to separate the effect of the sink from that of editing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layerscope.capture import Batch, expand_sites
from layerscope.capture.hooks import first_tensor
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.forward import read_states
from layerscope.metrics.tokens import token_norms
from layerscope.models import LoadedModel

NONE = "none"
REMOVALS = ("remove", "clamp", "replace")
CONTROLS = ("control", "matched", "moved")
EDITS = (*REMOVALS, *CONTROLS)
_MOST_TOKENS = 1 << 16  # positions with a random rank


@dataclass(frozen=True)
class SinkActivation:
    """The layer where a token becomes massive, and the features that carry it.

    `least` is the smallest ratio of norms that makes a token massive. Over the texts scanned,
    `ratio` is the mean of the largest token's norm over the median, `times` each feature's entry
    over the text's median entry, and `first_share` the share of texts whose largest token at that
    layer is the first.
    """

    layer: int
    features: tuple[int, ...]
    least: float
    ratio: float
    times: tuple[float, ...]
    first_share: float

    def facts(self) -> dict[str, Any]:
        """Return plain values for a manifest."""
        return {
            "layer": self.layer,
            "features": list(self.features),
            "times_median": [round(value, 1) for value in self.times],
            "ratio": round(self.ratio, 2),
            "first_token": round(self.first_share, 3),
            "least": self.least,
        }


def find_sink_activation(
    model: LoadedModel, prompts: Sequence[np.ndarray], options: Mapping[str, Any]
) -> SinkActivation:
    """Find the layer where the largest token's norm, over the median, rises most, and the features
    that carry it there."""
    if not prompts:
        raise LayerscopeError(
            "no text has three tokens, which the search for a sink needs. Give longer texts."
        )
    sites = expand_sites(None, model.anatomy)
    ratios = np.zeros((len(sites), len(prompts)))
    is_first = np.zeros((len(sites), len(prompts)))
    times: list[np.ndarray] = [np.zeros((len(prompts), model.width)) for _ in sites]

    def look(numbers: list[int], batch: Batch, site: int, raw: Tensor, _state: Tensor) -> None:
        for row, number in enumerate(numbers):
            states = raw[row, : len(prompts[number])].double()
            norms = states.norm(dim=-1)
            largest = int(norms.argmax())
            ratios[site, number] = float(norms[largest] / norms.median())
            is_first[site, number] = largest == 0
            size = states.abs()
            times[site][number] = (size[largest] / size.median().clamp(min=1e-30)).cpu().numpy()

    read_states(model, prompts, sites, "raw", look)
    curve = ratios.mean(axis=1)
    threshold = float(options["least"])
    layer = int(options["layer"])
    if layer > model.n_blocks:
        raise InvalidValueError(
            f"option layer: this model has layers 0 to {model.n_blocks}, not {layer}."
        )
    if layer < 0:
        if curve.max() < threshold:
            raise LayerscopeError(
                f"no sink was found: the largest token is at most {curve.max():.1f} × the median "
                f"(layer {int(curve.argmax())}), under {threshold:g}. Give least=… or the layer to "
                "edit, layer=…"
            )
        rise = np.diff(np.log(np.maximum(curve, 1e-30)), prepend=0.0)
        rise[curve < threshold] = -np.inf
        layer = int(rise.argmax())
    typical = np.median(times[layer], axis=0)
    carriers = np.flatnonzero(typical >= options["massive"])
    if not len(carriers):
        carriers = np.array([int(typical.argmax())])
    carriers = carriers[np.argsort(-typical[carriers], kind="stable")]
    return SinkActivation(
        layer,
        tuple(int(i) for i in carriers),
        threshold,
        float(curve[layer]),
        tuple(float(typical[i]) for i in carriers),
        float(is_first[layer].mean()),
    )


class SinkEdit:
    """Edit a model's states in every forward pass while the context is open. Hooks opened later see
    the edit.

    Removals change the features that carry the sink, in the tokens that are massive: `remove` sets
    them to zero, `clamp` to the largest magnitude that the feature has in the text's other tokens,
    `replace` to the mean of those.

    Controls leave the sink massive. `control` sets the same features of as many other tokens (the
    last ones) to zero. `matched` moves as many other tokens, at random places, by a vector as long
    as the removed entries, in a random direction. `moved` writes the massive entries into as many
    random other features: the token stays as large, in another direction. Places and directions
    follow from the seed and are the same in all texts, as the sink's are.
    """

    def __init__(self, model: LoadedModel, sink: SinkActivation, edit: str, seed: int = 0) -> None:
        self.model = model
        self.sink = sink
        self.edit = edit
        self.edited = 0  # tokens so far
        self._mask: Tensor | None = None
        self._handles: list[RemovableHandle] = []
        random = np.random.default_rng(seed)
        free = np.setdiff1d(np.arange(model.width), sink.features)
        if edit == "moved" and len(free) < len(sink.features):
            raise LayerscopeError(
                f"the sink is carried by {len(sink.features)} of {model.width} features: `moved` "
                "has nowhere to put them. Raise massive=… or leave `moved` out of edits=…"
            )
        self._rank = torch.from_numpy(random.permutation(_MOST_TOKENS))
        direction = np.zeros(model.width)
        direction[free] = random.standard_normal(len(free))
        self._direction = torch.from_numpy(direction / max(float(np.linalg.norm(direction)), 1e-30))
        self._features = torch.tensor(sink.features)
        self._elsewhere = torch.from_numpy(random.permutation(free)[: len(sink.features)])

    def __enter__(self) -> Self:
        if self.edit == NONE:
            return self
        self._handles.append(
            self.model.module.register_forward_pre_hook(self._begin, with_kwargs=True)
        )
        blocks = self.model.anatomy.blocks
        if self.sink.layer == 0:
            self._handles.append(
                blocks[0].register_forward_pre_hook(self._before, with_kwargs=True)
            )
        else:
            self._handles.append(blocks[self.sink.layer - 1].register_forward_hook(self._after))
        return self

    def __exit__(self, *exc: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _begin(self, _module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        self._mask = mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None

    def _before(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        states = first_tensor(args, kwargs)
        new = self.apply(states)
        args = tuple(new if value is states else value for value in args)
        return args, {name: new if value is states else value for name, value in kwargs.items()}

    def _after(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return self.apply(output)
        states = first_tensor(output)
        return type(output)([self.apply(value) if value is states else value for value in output])

    def apply(self, states: Tensor) -> Tensor:
        """Return states (B, T, D) with the edit made; all other entries are untouched."""
        present = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        if self._mask is not None:
            present = self._mask[:, -states.shape[1] :].to(states.device)
        norms = token_norms(states)
        median = norms.masked_fill(~present, torch.nan).nanmedian(-1, keepdim=True).values
        massive = present & (norms >= self.sink.least * median)
        normal = present & ~massive
        features = self._features.to(states.device)
        entries = states[..., features]
        edited = states.clone()
        target = massive
        if self.edit == "matched":
            target = self._random_tokens(massive, normal)
            squares = torch.where(massive.unsqueeze(-1), entries.float(), 0.0).square().sum((1, 2))
            # the root mean square of the entries of a massive token
            length = (squares / massive.sum(-1).clamp(min=1)).sqrt()
            step = length[:, None, None] * self._direction.to(states.device, torch.float32)
            moved = (states.float() + step).to(states.dtype)
            edited = torch.where(target.unsqueeze(-1), moved, edited)
        elif self.edit == "moved":
            elsewhere = self._elsewhere.to(states.device)
            before = states[..., elsewhere]
            edited[..., elsewhere] = torch.where(target.unsqueeze(-1), before + entries, before)
            edited[..., features] = torch.where(target.unsqueeze(-1), 0.0, entries)
        else:
            if self.edit == "control":
                target = self._last_tokens(massive, normal)
            new = self._new_entries(entries, normal.unsqueeze(-1)).to(states.dtype)
            edited[..., features] = torch.where(target.unsqueeze(-1), new, entries)
        self.edited += int(target.sum())
        return edited

    def _new_entries(self, entries: Tensor, normal: Tensor) -> Tensor:
        """Return the entries after the edit, from those of the normal tokens."""
        if self.edit == "replace":
            total = torch.where(normal, entries, 0.0).sum(1, keepdim=True)
            return (total / normal.sum(1, keepdim=True).clamp(min=1)).expand_as(entries)
        if self.edit == "clamp":
            limit = torch.where(normal, entries.abs(), 0.0).amax(1, keepdim=True)
            return torch.maximum(torch.minimum(entries, limit), -limit)
        return torch.zeros_like(entries)

    @staticmethod
    def _last_tokens(massive: Tensor, normal: Tensor) -> Tensor:
        """Choose as many normal tokens of each text as are massive: the last ones."""
        # 1 at the last normal token, 2 at the one before, …
        place_from_end = normal.flip(-1).cumsum(-1).flip(-1)
        return normal & (place_from_end <= massive.sum(-1, keepdim=True))

    def _random_tokens(self, massive: Tensor, normal: Tensor) -> Tensor:
        """Choose as many normal tokens of each text as are massive, by a random rank of their
        place, which padding does not change."""
        rank = self._rank[: massive.shape[1]].to(massive.device).expand_as(massive)
        rank = rank.masked_fill(~normal, _MOST_TOKENS)
        return normal & (rank.argsort(-1).argsort(-1) < massive.sum(-1, keepdim=True))
