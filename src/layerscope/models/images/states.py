"""States of images at every layer, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerscope.capture.anatomy import expand_sites
from layerscope.capture.hooks import Capture, FinalNorm
from layerscope.core.sites import Site
from layerscope.models.images.model import ImageModel

if TYPE_CHECKING:
    from layerscope.data.images import ImageSet, PixelReader

_BATCH = 32


def iterate_states(
    model: ImageModel,
    images: ImageSet,
    *,
    sites: Sequence[Site] | None = None,
    final_norm: FinalNorm = "applied",
    tokens: str = "patches",
    batch_size: int | None = None,
    indices: Sequence[int] | None = None,
    reader: PixelReader | None = None,
) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of some images and their states (sites, images, tokens, D), one batch after the other, in the given order.

    `tokens` is `patches` or `all`. Without `sites`: layer 0 to L. A `reader` of one's own may go through the images repeatedly.
    """
    from layerscope.data.images import PixelReader

    wanted = list(sites) if sites is not None else expand_sites(None, model.anatomy)
    order = list(range(len(images)) if indices is None else indices)
    size = batch_size or _BATCH
    kept: dict[int, Tensor] = {}
    skip = 0

    def on_state(index: int, _raw: Tensor, state: Tensor) -> None:
        kept[index] = state[:, skip:]

    own = PixelReader(model.processor) if reader is None else reader
    try:
        with Capture(model.anatomy, wanted, final_norm, on_state) as capture:
            for start in range(0, len(order), size):
                part = [int(i) for i in order[start : start + size]]
                batch = model.make_batch(own.read(images, part), tokens)
                skip = batch.skip
                capture.run(lambda batch=batch: model.run(batch))  # type: ignore[misc]
                yield part, torch.stack([kept[i] for i in range(len(wanted))])
                kept.clear()
    finally:
        if reader is None:
            own.close()
