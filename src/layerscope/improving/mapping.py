"""The map of an improvement: the sample at every layer, read as today and as chosen, from vectors
that were read already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from layerscope.core.readout import Readout, describe_readout
from layerscope.data.corpus import columns_beside
from layerscope.improving.chosen import Chosen
from layerscope.improving.grid import StoredCandidates
from layerscope.improving.sample import Sample
from layerscope.maps import MOST, LayerMap, make_map
from layerscope.maps.layer_map import Vectors
from layerscope.models import LoadedModel
from layerscope.vectors import text_key

TODAY, BETTER = "today", "better"


def map_of_choice(
    model: LoadedModel, sample: Sample, candidates: StoredCandidates, chosen: Chosen, after: np.ndarray, kept_default: bool,
    trained: bool = False,
) -> LayerMap | None:  # fmt: skip
    """Today's reading at every layer, and the chosen one: at every layer, or where blocks were
    trained at the last of them.

    The sample is in random order, so that the first of it are a sample, too.
    """
    texts, layers = sample.texts[:MOST], list(candidates.layers)

    def at_layers(readout: Readout) -> Iterable[np.ndarray]:
        return candidates.vectors(readout)[:, : len(texts)]

    own = chosen.readout if kept_default else Readout()
    readings = [Vectors(TODAY, describe_readout(own.name), layers, model.n_blocks, at_layers(own))]
    if trained:
        readings.append(
            Vectors(
                BETTER,
                "the trained blocks, through their head",
                [chosen.layer],
                chosen.layer,
                [after[: len(texts)]],
            )
        )
    elif not kept_default:
        readings.append(
            Vectors(
                BETTER,
                describe_readout(chosen.readout.name),
                layers,
                chosen.layer,
                at_layers(chosen.readout),
            )
        )
    columns = columns_beside(sample.facts.get("source") or {}, texts)
    keys = [text_key(text) for text in texts]
    given: dict[str, Any] = {
        "texts": texts,
        "keys": keys,
        "total": sample.total,
        "columns": columns,
    }
    return make_map(model.name, sample.name, model.n_blocks, readings, **given)
