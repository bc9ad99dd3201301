"""Valleys of prompt entropy: how deep, how sure, and whether one token makes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.profiling import Run
from layerscope.studies.shared.sampling import Dip, Mean, by_layer, dip_of, mean_of

VALUES = ["model", "site", "layer", "depth", "metric", "normalization", "sink", "value", "ci_low", "ci_high", "n"]


@dataclass(frozen=True)
class Valleys:
    """The dips of one model's prompt entropy with the sink token kept and dropped."""

    label: str
    layers: int
    kept: Dip
    dropped: Dip

    @classmethod
    def of(cls, run: Run, label: str, seed: int, texts: int) -> Valleys:
        """From a profile of whole layers on so many texts."""
        kept, dropped = (dip_of(by_layer(run.prompts, "prompt_entropy", s, texts).to_numpy(), seed) for s in ("keep", "drop"))
        return cls(label, int(run.manifest["model"]["n_blocks"]), kept, dropped)

    def sentence(self) -> str:
        """What it is, no surer than its intervals."""
        if not self.kept.is_valley:
            text = f"{self.label} has no clear valley: its deepest dip is {_deep(self.kept)} nats"
            return f"{text}, without the sink token {_deep(self.dropped)}."
        text = f"{self.label} has a valley at layer {self.kept.place} of {self.layers}, {_deep(self.kept)} nats deep"
        if self.dropped.is_valley:
            return f"{text}; without the sink token one remains at layer {self.dropped.place}, {_deep(self.dropped)}."
        return f"{text}; without the sink token none is left ({_deep(self.dropped)})."

    def rows(self, **more: object) -> list[dict[str, object]]:
        """Rows of a table: the depth of the dip, at its layer."""
        out = []
        for sink, dip in (("keep", self.kept), ("drop", self.dropped)):
            site = "embed" if dip.place == 0 else f"block.{dip.place - 1}"
            place = {"model": self.label, "site": site, "layer": dip.place, "depth": dip.place / self.layers}
            ends = {"value": dip.depth.value, "ci_low": dip.depth.low, "ci_high": dip.depth.high, "n": dip.depth.n}
            out.append({**more, **place, "metric": "valley_depth", "normalization": "raw", "sink": sink, **ends})
        return out


def deeper(one: Dip, other: Dip, seed: int) -> Mean:
    """How much deeper the other dip is, prompt by prompt; both over the same prompts."""
    return mean_of(other.falls - one.falls, seed)


def profile_rows(run: Run, label: str, **more: object) -> pd.DataFrame:
    """A profile's table with the model's name: raw values, and prompt entropy divided by the log of the length as well."""
    table = run.table
    wanted = (table["normalization"] == "raw") | ((table["metric"] == "prompt_entropy") & (table["normalization"] == "logN"))
    rows = table[wanted].assign(model=label, **more)  # type: ignore[arg-type]
    return rows[[*more, *VALUES]]


def _deep(dip: Dip) -> str:
    d = dip.depth
    return f"{d.value:.2f} ({d.low:.2f} to {d.high:.2f})" if np.isfinite(d.low) else f"{d.value:.2f} (no interval)"
