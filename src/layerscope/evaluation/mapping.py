"""The map of an evaluation: the texts of its tasks at every layer, read as today and as scores
best, from the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.readout import READOUT_COLUMNS, Readout, row_words
from layerscope.evaluation.encode import readout_vectors
from layerscope.evaluation.plan import EvaluationPlan
from layerscope.maps import LayerMap, make_map
from layerscope.maps.layer_map import Vectors, pick
from layerscope.store.embeddings import Space, text_key

TODAY, BEST = "today", "best"


def map_of_evaluation(
    plan: EvaluationPlan,
    texts: Mapping[str, Sequence[str]],
    labels: Mapping[str, str],
    spaces: Mapping[str, Space],
    scores: pd.DataFrame,
) -> LayerMap | None:
    """At most 2,000 of the texts, colored by their task and, where they have one, their label."""
    task_of = {text: task for task, some in texts.items() for text in some}
    every = list(task_of)
    all_keys = [text_key(text) for text in every]
    chosen = pick(all_keys)
    keys, shown = [all_keys[i] for i in chosen], [every[i] for i in chosen]
    layers = [int(site.layer) for site in plan.sites if site.layer is not None]

    def at_layers(readout: Readout) -> Iterator[np.ndarray]:
        for site in plan.sites:
            found = readout_vectors(spaces[readout.template], keys, readout, site.name)
            yield found - found.mean(0) if readout.centering == "corpus" else found

    def reading(name: str, readout: Readout, at: int) -> Vectors:
        return Vectors(
            name, ", ".join(filter(None, row_words(readout.name))), layers, at, at_layers(readout)
        )

    default = Readout() if Readout() in plan.readouts else plan.readouts[0]
    readings = [reading(TODAY if default == Readout() else "last layer", default, layers[-1])]
    best = _best(scores)
    if best is not None and best != (default, layers[-1]):
        readings.append(reading(BEST, *best))
    columns: dict[str, list[Any]] = {
        "label": [labels.get(text) for text in shown],
        "task": [task_of[text] for text in shown],
    }
    about = ", ".join(texts) if len(texts) < 4 else f"{len(texts)} tasks"
    name, blocks = plan.model.name, plan.model.n_blocks
    return make_map(
        name,
        about,
        blocks,
        readings,
        texts=shown,
        keys=keys,
        total=len(every),
        columns=columns,
        layout=plan.layout,
    )


def _best(scores: pd.DataFrame) -> tuple[Readout, int] | None:
    """The readout and layer with the highest mean score over all that was scored; None where a
    score is missing everywhere."""
    means = (
        scores.groupby([*READOUT_COLUMNS, "layer"], sort=False)["score"]
        .agg(lambda some: some.mean(skipna=False))
        .dropna()
    )
    if means.empty:
        return None
    *parts, layer = means.index[int(means.argmax())]
    return Readout(*map(str, parts)), int(layer)
