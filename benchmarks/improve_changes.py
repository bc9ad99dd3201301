"""What may be done to vectors after they are read, and other places to read them: candidates for
`improve`, measured first.

Whitening and the removal of top directions are fitted on the sample of unlabeled texts; projections
from the unembedding need no data. All are linear, so that a standard folder could hold them as one
dense layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerscope.core.readout import Readout
from layerscope.models import LoadedModel

BLEND = "blend"
"""Instead of a template's name: the mean of the centered unit vectors under several prompts. No
export: a teacher."""

CHANGES = (
    Readout("plain", "mean", "applied", "keep", "corpus"),
    Readout("one-word", "last", "raw", "keep", "corpus"),
    Readout("one-word", "last", "applied", "keep", "corpus"),
    Readout(BLEND, "last", "raw", "keep", "corpus"),
)
"""The readouts that the changes are tried on."""

Fitted = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Changed:
    """A readout with a change of its vectors: `fit` on vectors (layers, texts, D) of a sample gives
    the change itself."""

    base: Readout
    how: str
    fit: Callable[[Tensor], Fitted]

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"{self.base.name} + {self.how}"

    @classmethod
    def all_of(cls, base: Readout, directions: Tensor) -> Iterator[Changed]:
        """Every change of one readout."""
        for count in (1, 3):
            yield cls(
                base,
                f"top {count} removed",
                lambda rows, n=count: _spectral(rows, lambda values, n=n: _without_top(values, n)),
            )
        for power, name in ((0.25, "whitened by half"), (0.5, "whitened")):
            yield cls(
                base,
                name,
                lambda rows, p=power: _spectral(rows, lambda values, p=p: _whitened(values, p)),
            )
        yield cls(base, "mean of 4 layers", lambda rows: _neighbors)
        width = directions.shape[1]
        for share, name in ((64, "1/64"), (8, "1/8")):
            top = directions[: max(1, width // share)]
            yield cls(
                base,
                f"top {name} of the unembedding removed",
                lambda rows, top=top: _project(top, away=True),
            )
        yield cls(
            base,
            "bottom 1/8 of the unembedding removed",
            lambda rows: _project(directions[-(width // 8) :], away=True),
        )
        yield cls(
            base,
            "top 1/8 of the unembedding alone",
            lambda rows: _project(directions[: width // 8], away=False),
        )


def _spectral(rows: Tensor, weigh: Callable[[Tensor], Tensor]) -> Fitted:
    """V w(λ) Vᵀ per layer, from the covariance of the (centered) rows; layers that are undefined
    stay so."""
    known = torch.isfinite(rows).all(-1).all(-1)
    kept = torch.where(known[:, None, None], rows, 0.0).double()
    kept = kept - kept.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(kept.transpose(1, 2) @ kept / rows.shape[1])
    matrix = ((vectors * weigh(values.clamp_min(0))[:, None]) @ vectors.transpose(1, 2)).to(
        rows.dtype
    )
    return lambda given: given @ matrix


def _without_top(values: Tensor, count: int) -> Tensor:
    weight = torch.ones_like(values)
    weight[:, -count:] = 0
    return weight


def _whitened(values: Tensor, power: float) -> Tensor:
    # directions below a thousandth of the mean variance are noise of the sample: they are not blown
    # up further
    return values.clamp_min(1e-3 * values.mean(1, keepdim=True)).clamp_min(1e-30) ** -power


def _neighbors(rows: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize(rows, dim=-1)
    return torch.stack([torch.nanmean(unit[max(0, k - 3) : k + 1], 0) for k in range(len(unit))])


def _project(directions: Tensor, away: bool) -> Fitted:
    def change(rows: Tensor) -> Tensor:
        along = rows @ directions.T
        return rows - along @ directions if away else along

    return change


def unembedding_directions(model: LoadedModel) -> Tensor:
    """Right singular vectors (D, D) of the unembedding, which both models tie to the embedding; the
    largest first."""
    weight = next(
        p
        for n, p in model.module.named_parameters()
        if "embed" in n and p.ndim == 2 and p.shape[0] > 8 * p.shape[1]
    )
    rows = weight.detach().double()
    rows = rows[torch.isfinite(rows).all(1)]
    _, vectors = torch.linalg.eigh(rows.T @ rows)
    return vectors.flip(1).T.float().contiguous()


def extra_vectors(
    model: LoadedModel, texts: Sequence[str], max_length: int, encode: Callable
) -> Iterator[tuple[str, Tensor]]:
    """Other places: what attention adds to the stream, and its values, averaged over the text or at
    the last token."""
    wanted = {"plain": ["mean/raw"], "one-word": ["last/raw"]}
    stored, _ = encode(model, texts, wanted, max_length, ["block.*.attn"])
    for (template, kind), rows in stored.items():
        yield f"{template}/{kind} at attention's output", rows
    kept: list[list[Tensor]] = []
    for template, kind in (("plain", "mean"), ("one-word", "last")):
        rows = _values(model, texts, template, kind, max_length, kept)
        if rows is not None:
            yield f"{template}/{kind} of attention's values", rows


def _values(
    model: LoadedModel, texts: Sequence[str], template: str, kind: str, max_length: int, kept: list
) -> Tensor | None:
    """Values (blocks, texts, heads × width), by hooks on the layers that compute them."""
    from layerscope.core.templates import get_template
    from layerscope.evaluation.encode import encode_template

    layers = [module for name, module in model.module.named_modules() if name.endswith("v_proj")]
    if not layers:
        return None
    pattern = get_template(template)
    frame = (
        0
        if template == "plain"
        else len(model.tokenize([pattern.pattern.replace("{text}", "")]).ids[0]) + 2
    )
    encoded = encode_template(model, pattern, texts, max_length + frame)
    order = sorted(range(len(texts)), key=lambda i: -len(encoded[i].ids))
    device = next(model.module.parameters()).device
    seen: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda _m, _i, out: seen.append(out)) for layer in layers]
    parts = []
    try:
        with torch.inference_mode():
            for start in range(0, len(order), 256):
                ids = [encoded[i].ids for i in order[start : start + 256]]
                width = max(map(len, ids))
                batch = torch.tensor(
                    [row + [model.pad_id] * (width - len(row)) for row in ids], device=device
                )
                mask = torch.tensor(
                    [[1] * len(row) + [0] * (width - len(row)) for row in ids], device=device
                )
                seen.clear()
                model.module(input_ids=batch, attention_mask=mask, use_cache=False)
                values = torch.stack(seen)
                if kind == "mean":
                    weight = mask[None, :, :, None].to(values.dtype)
                    parts.append((values * weight).sum(2) / weight.sum(2))
                else:
                    parts.append(values[:, torch.arange(len(ids)), mask.sum(1) - 1])
    finally:
        for hook in hooks:
            hook.remove()
    rows = torch.cat(parts, 1)
    out = torch.empty_like(rows)
    out[:, torch.tensor(order, device=rows.device)] = rows
    return out.clone()
