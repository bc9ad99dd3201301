"""From the classes that probes name for the test items to a table: accuracies with intervals, gains over the last layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.capture import Site
from layerscope.probing.intervals import paired_gains, resampled, tied_with_best, wilson

COLUMNS = ["probe", "metric", "layer", "depth", "site", "value", "ci_low", "ci_high", "n"]
COLUMNS += ["gain", "gain_low", "gain_high", "tied_best", "validation", "learning_rate", "epoch", "epochs"]


@dataclass(frozen=True)
class Answers:
    """What one kind of probe said: the likeliest classes (layers, test items, up to 5), and how each layer's was chosen."""

    ranks: np.ndarray
    validation: np.ndarray
    rate: np.ndarray
    epoch: np.ndarray
    epochs: np.ndarray
    seconds: float = 0.0


def probe_table(
    answers: dict[str, Answers], sites: Sequence[Site], blocks: int, labels: np.ndarray, classes: int, seed: int
) -> pd.DataFrame:
    """One row per probe, metric and layer; `labels` are the test items' classes."""
    rows = []
    last = max(range(len(sites)), key=lambda i: sites[i].layer)
    for probe, said in answers.items():
        for metric, top in (("top1", 1), ("top5", 5)):
            if top >= classes:
                continue  # always right
            correct = (said.ranks[:, :, :top] == labels[None, :, None]).any(-1)
            drawn = resampled(correct, seed)
            gain, low, high = paired_gains(correct, last, drawn)
            tied = tied_with_best(correct, drawn)
            for i, site in enumerate(sites):
                bounds = wilson(int(correct[i].sum()), correct.shape[1])
                where = [probe, metric, site.layer, site.layer / blocks, site.name]
                measured = [correct[i].mean(), *bounds, correct.shape[1], gain[i], low[i], high[i], bool(tied[i])]
                rows.append([*where, *measured, said.validation[i], said.rate[i], said.epoch[i], said.epochs[i]])
    return pd.DataFrame(rows, columns=COLUMNS)


def item_table(answers: dict[str, Answers], sites: Sequence[Site], items: np.ndarray, labels: np.ndarray) -> pd.DataFrame:
    """One row per probe, layer and test item: its class, the class named, and the place of its own class among the first five."""
    parts = []
    for probe, said in answers.items():
        found = said.ranks == labels[None, :, None]
        place = np.where(found.any(-1), found.argmax(-1) + 1, 0)
        for i, site in enumerate(sites):
            columns = {"item": items, "label": labels, "predicted": said.ranks[i, :, 0], "place": place[i]}
            part = pd.DataFrame({name: np.asarray(values, dtype=np.int32) for name, values in columns.items()})
            part.insert(0, "layer", np.int32(site.layer))
            part.insert(0, "probe", probe)
            parts.append(part)
    return pd.concat(parts, ignore_index=True)
