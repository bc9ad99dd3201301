"""Differences between two models at the same depth, prompt by prompt, with intervals; as a table and in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.profiling import Run
from layerscope.studies.shared.sampling import Mean, at_depths, by_layer, mean_of
from layerscope.studies.shared.valleys import VALUES, Valleys
from layerscope.studies.shared.wording import layers

# metric, normalization: what has a value per prompt
PAIRED = (("prompt_entropy", "raw"), ("prompt_entropy", "logN"), ("curvature", "raw"))
Key = tuple[str, str, str]  # metric, normalization, sink


@dataclass
class Differences:
    """One model minus the base: (prompts, layers of the base) by metric, normalisation and sink."""

    base: str
    other: str
    layers: list[int]
    sites: list[str]
    depths: np.ndarray
    values: dict[Key, np.ndarray]
    seed: int

    def at(self, key: Key, layer: int) -> Mean:
        """The mean difference at a layer of the base."""
        return mean_of(self.values[key][:, layer], self.seed)

    def overall(self, key: Key) -> Mean:
        """The mean over layers, of each prompt first."""
        return mean_of(self.values[key].mean(axis=1), self.seed)

    def table(self) -> pd.DataFrame:
        """One row per layer of the base."""
        rows = []
        for key in self.values:
            for j, layer in enumerate(self.layers):
                mean = self.at(key, j)
                place = [self.other, self.sites[j], layer, float(self.depths[j]), *key]
                rows.append(["difference", self.base, *place, mean.value, mean.low, mean.high, mean.n])
        return pd.DataFrame(rows, columns=["kind", "against", *VALUES])


def differences(base: tuple[str, Run], other: tuple[str, Run], texts: int, seed: int) -> Differences:
    """Other minus base at the base's layers."""
    first, second = base[1], other[1]
    place = first.prompts.drop_duplicates("site")
    have = np.arange(int(second.manifest["model"]["n_blocks"]) + 1) / int(second.manifest["model"]["n_blocks"])
    want = place["layer"].to_numpy() / int(first.manifest["model"]["n_blocks"])
    values = {}
    for metric, normalization in PAIRED:
        for sink in ("keep", "drop"):
            one, two = (_values(run, metric, normalization, sink, texts) for run in (first, second))
            values[metric, normalization, sink] = at_depths(two, have, want) - one
    numbers, sites = place["layer"].astype(int).tolist(), place["site"].tolist()
    return Differences(base[0], other[0], numbers, sites, want, values, seed)


def _values(run: Run, metric: str, normalization: str, sink: str, texts: int) -> np.ndarray:
    """(texts, layers); `logN` divides by the log of each prompt's number of tokens, where that is above 0."""
    values = by_layer(run.prompts, metric, sink, texts).to_numpy()
    if normalization == "raw":
        return values
    tokens = run.prompts.drop_duplicates("prompt").set_index("prompt")["tokens"].reindex(range(texts)).to_numpy(dtype=float)
    tokens = tokens - (1 if sink == "drop" else 0)
    by = np.where(tokens > 1, np.log(np.where(tokens > 1, tokens, 2.0)), np.nan)
    return values / by[:, None]


def verdict(found: list[Differences], valleys: list[Valleys], other_tokens: bool) -> list[str]:
    """Each model against the base, then each one's valley."""
    out = []
    for held in found:
        if all(not np.nan_to_num(values).any() for values in held.values.values()):
            out.append(f"{held.other} gives the very numbers of {held.base} at every layer and for every prompt.")
            continue
        kept, dropped = (held.overall(("prompt_entropy", "raw", sink)) for sink in ("keep", "drop"))
        does = {1: "higher", -1: "lower", 0: "not clearly different"}
        text = f"{held.other} against {held.base}: prompt entropy is {does[kept.apart]} over all layers, {kept} nats"
        again = "the same" if kept.apart == dropped.apart else does[dropped.apart]
        out.append(f"{text}; without the sink token {again}, {dropped}.")
        out.append("  " + _layers(held, ("prompt_entropy", "raw", "keep")))
        out.append("  Without the sink token: " + _layers(held, ("prompt_entropy", "raw", "drop")))
        if other_tokens:
            kept, dropped = (held.overall(("prompt_entropy", "logN", sink)) for sink in ("keep", "drop"))
            out.append(f"  Divided by the log of the number of tokens: {kept}, without the sink token {dropped}.")
        bend, without = (held.overall(("curvature", "raw", sink)) for sink in ("keep", "drop"))
        out.append(f"  Curvature differs by {bend} radians, without the sink token {without}.")
    return out + [valley.sentence() for valley in valleys]


def _layers(held: Differences, key: Key) -> str:
    each = [held.at(key, j) for j in range(len(held.layers))]
    up = [held.layers[j] for j, mean in enumerate(each) if mean.apart > 0]
    down = [held.layers[j] for j, mean in enumerate(each) if mean.apart < 0]
    if not up and not down:
        return "At no layer of the base does the interval leave out zero."
    most = int(np.nanargmax([abs(mean.value) for mean in each]))
    where = [f"higher at {layers(up)}"] * bool(up) + [f"lower at {layers(down)}"] * bool(down)
    many = f"of {held.layers[-1]} of the base" if len(up) + len(down) > 1 else "of the base"
    return f"{' and '.join(where).capitalize()} {many}; most at layer {held.layers[most]}, {each[most]}."
