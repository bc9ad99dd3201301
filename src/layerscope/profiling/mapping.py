"""The map of a profile: its texts, images or sounds at every layer, from vectors that were read for
the metrics."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.core.sites import site_of
from layerscope.data.corpus import columns_beside
from layerscope.data.items import Items
from layerscope.maps import LayerMap, make_map
from layerscope.maps.layer_map import Vectors, pick
from layerscope.models import LoadedModel
from layerscope.store import Shard

_SIDE = 32  # pixels of a picture on the page


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
    place = {int(number): i for i, number in enumerate(numbers)}

    def by_layer() -> Iterator[np.ndarray]:
        for _, site in layers:
            rows = np.empty((len(numbers), model.width), dtype=np.float32)
            for shard in shards:
                here = [j for j, number in enumerate(shard.prompts) if int(number) in place]
                if here:
                    found: Any = shard.pooled[site][:, 0]
                    vectors = (
                        found.float().cpu().numpy() if hasattr(found, "cpu") else np.asarray(found)
                    )
                    rows[[place[int(shard.prompts[j])] for j in here]] = vectors[here]
            yield rows

    texts, columns, pictures = _described(items, numbers)
    last = max(layer for layer, _ in layers)
    reading = Vectors(
        "profile",
        f"mean of the tokens, final norm {final_norm}",
        [k for k, _ in layers],
        last,
        by_layer(),
    )
    short = [keys[int(np.searchsorted(read, number))] for number in numbers]
    given: dict[str, Any] = {
        "texts": texts,
        "columns": columns,
        "pictures": pictures,
        "kind": items.kind,
    }
    return make_map(
        model.name, items.name, model.n_blocks, [reading], keys=short, total=len(read), **given
    )


def _described(
    items: Any, numbers: np.ndarray
) -> tuple[list[str] | None, dict[str, list[Any]], bytes | None]:
    """What a map shows of items: their texts or names, their columns, and small pictures of
    images."""
    if items.kind == "texts":
        texts = [items.texts[int(i)] for i in numbers]
        return texts, columns_beside(items.source, texts), None
    names = getattr(items, "names", None)
    shown = None if names is None else [str(names[int(i)]) for i in numbers]
    labels = getattr(items, "labels", None)
    columns = (
        {} if labels is None else {"class": [items.classes[int(labels[int(i)])] for i in numbers]}
    )
    return shown, columns, _pictures(items.items, numbers) if items.kind == "images" else None


def _pictures(items: Sequence[Any], numbers: np.ndarray) -> bytes:
    """All images as small squares of one JPEG, row by row."""
    from PIL import Image

    from layerscope.data.images.imageset import decode

    across = int(np.ceil(np.sqrt(len(numbers))))
    sheet = Image.new("RGB", (across * _SIDE, across * _SIDE))
    for place, number in enumerate(numbers):
        one = decode(items[int(number)]).convert("RGB")
        edge = min(one.size)
        left, top = (one.width - edge) // 2, (one.height - edge) // 2
        small = one.crop((left, top, left + edge, top + edge)).resize((_SIDE, _SIDE))
        sheet.paste(small, (place % across * _SIDE, place // across * _SIDE))
    stream = io.BytesIO()
    sheet.save(stream, "JPEG", quality=70)
    return stream.getvalue()
