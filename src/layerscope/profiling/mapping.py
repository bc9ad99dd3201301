"""The map of a profile: its items at every layer, from vectors that were read for
the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.core.sites import site_of
from layerscope.data.items import Items
from layerscope.maps import LayerMap, Vectors, make_map, pick
from layerscope.models import LoadedModel
from layerscope.store import Shard


def map_of_profile(
    model: LoadedModel, items: Items, sites: Sequence[Site], shards: Sequence[Shard], final_norm: str,
) -> LayerMap | None:  # fmt: skip
    """The items' own vectors at every whole layer; views are left out."""
    read = np.sort(np.concatenate([shard.prompts for shard in shards]))
    keys = [int(key).to_bytes(8, "big") for key in items.keys[read]]
    numbers = read[pick(keys)]
    layers = [
        (int(site.layer), i)
        for i, site in enumerate(sites)
        if site.layer is not None and site.name == site_of(site.layer)
    ]
    if not layers:
        return None

    places = [np.flatnonzero(np.isin(shard.prompts, numbers)) for shard in shards]

    def by_layer() -> Iterator[np.ndarray]:
        for _, site in layers:
            rows = np.empty((len(numbers), model.width), dtype=np.float32)
            for shard, here in zip(shards, places, strict=True):
                if len(here):
                    found: Any = shard.pooled[site][:, 0]
                    found = found.float().cpu() if hasattr(found, "cpu") else found
                    rows[np.searchsorted(numbers, shard.prompts[here])] = np.asarray(found)[here]
            yield rows

    shown = items.describe(numbers)
    last = max(layer for layer, _ in layers)
    reading = Vectors(
        "profile",
        f"mean of the tokens, final norm {final_norm}",
        [k for k, _ in layers],
        last,
        by_layer(),
    )
    return make_map(
        model.name,
        items.name,
        model.n_blocks,
        [reading],
        count=len(numbers),
        total=len(read),
        texts=shown.texts,
        columns=shown.columns,
        pictures=shown.pictures,
        kind=items.kind,
    )
