"""The map of an improvement: the sample at every layer, as it is read today and as was chosen."""

from __future__ import annotations

import numpy as np

from layerscope.core.readout import describe_readout
from layerscope.data.corpus import columns_beside
from layerscope.improving.candidates import StoredCandidates
from layerscope.improving.chosen import Chosen
from layerscope.improving.sample import Sample
from layerscope.maps import MOST, LayerMap, Vectors, make_map

TODAY, BETTER = "today", "better"


def map_of_choice(
    sample: Sample,
    candidates: StoredCandidates,
    today: Chosen,
    chosen: Chosen,
    trained: np.ndarray | None = None,
) -> LayerMap | None:
    """Return the map of today's reading and of the chosen one, where that is another.

    `trained` are the vectors of a student, which has them at its last layer alone. The sample is in
    random order, so that its first texts are a sample, too.
    """
    texts = sample.texts[:MOST]
    layers = list(candidates.layers)

    def at_layers(one: Chosen, name: str) -> Vectors:
        vectors = candidates.vectors(one.readout)[:, : len(texts)]
        return Vectors(name, describe_readout(one.readout.name), layers, one.layer, vectors)

    readings = [at_layers(today, TODAY)]
    if trained is not None:
        words = "the trained blocks, through their head"
        place = chosen.layer
        readings.append(Vectors(BETTER, words, [place], place, [trained[: len(texts)]]))
    elif (chosen.readout, chosen.layer) != (today.readout, today.layer):
        readings.append(at_layers(chosen, BETTER))
    return make_map(
        today.model.name,
        sample.name,
        today.model.n_blocks,
        readings,
        texts=texts,
        count=len(texts),
        total=sample.total,
        columns=columns_beside(sample.facts.get("source") or {}, texts),
    )
