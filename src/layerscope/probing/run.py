"""Finished probes: how well every layer's states give the classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from layerscope.core.runs import finished_manifest, view
from layerscope.errors import UnknownNameError
from layerscope.store import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND = "probe"


@dataclass
class ProbeRun:
    """What `layerscope.probe` returns. `table` has a row per probe, metric and layer; `items` a row per test item as well."""

    kind: ClassVar[str] = KIND

    table: pd.DataFrame
    items: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None

    @classmethod
    def load(cls, path: str | Path) -> ProbeRun:
        """Read a run's folder."""
        manifest = finished_manifest(path, cls.kind)
        folder = RunFolder(path)
        return cls(folder.read_table("probe"), folder.read_table("items"), manifest, Path(path))

    def save(self, path: str | Path) -> ProbeRun:
        """Write the run's folder: probe.parquet, probe.csv, items.parquet, manifest.json."""
        folder = RunFolder(path)
        folder.write_table("items", self.items, csv=False)
        folder.write_table("probe", self.table)
        self.manifest = folder.write_manifest(self.manifest)  # last: it says that the rest is there
        self.path = Path(path)
        return self

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.manifest["model"]["name"])

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of the run's folder."""
        return {"probe": self.table, "items": self.items}

    @property
    def probes(self) -> list[str]:
        """The kinds of probes."""
        return list(dict.fromkeys(self.table["probe"]))

    def curve(self, probe: str | None = None, metric: str = "top1") -> pd.DataFrame:
        """One metric of one probe over the layers."""
        wanted = probe or self.probes[0]
        if wanted not in self.probes:
            raise UnknownNameError("probe in this run", wanted, self.probes)
        held = self.table[self.table["probe"] == wanted]
        if metric not in set(held["metric"]):
            raise UnknownNameError("metric in this run", metric, set(held["metric"]))
        return held[held["metric"] == metric].sort_values("layer").reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        """What a reader wants first, as plain values: per probe the best layer and the last.

        `chosen` is the layer that is best on the validation items (of several, the deepest); its gain over the last layer is
        fair, since the test items had no say in it. `best` is picked on the test items themselves, which flatters it.
        """
        found = {}
        for probe in self.probes:
            curve = self.curve(probe)
            best, last = curve.iloc[int(curve["value"].argmax())], curve.iloc[-1]
            chosen = curve[curve["validation"] == curve["validation"].max()].iloc[-1]
            found[probe] = {
                "best_layer": int(best["layer"]),
                "best": float(best["value"]),
                "best_ci": [float(best["ci_low"]), float(best["ci_high"])],
                "tied": [int(layer) for layer in curve.loc[curve["tied_best"], "layer"]],
                "last_layer": int(last["layer"]),
                "last": float(last["value"]),
                "last_ci": [float(last["ci_low"]), float(last["ci_high"])],
                "chosen_layer": int(chosen["layer"]),
                "chosen": float(chosen["value"]),
                "chosen_ci": [float(chosen["ci_low"]), float(chosen["ci_high"])],
                "gain": float(chosen["gain"]),
                "gain_ci": [float(chosen["gain_low"]), float(chosen["gain_high"])],
            }
        return {
            "model": self.name,
            "data": self.manifest["data"]["name"],
            "items": self.manifest["counts"],
            "probes": found,
            "warnings": self.manifest["warnings"],
            "run": None if self.path is None else str(self.path),
        }

    def plot(self, metric: str = "top1") -> Figure:
        """Accuracy against depth, as a matplotlib figure."""
        return view(self.kind, "plot")([self], metric=metric)

    def __repr__(self) -> str:
        count = self.table["layer"].nunique()
        return f"<ProbeRun {self.name} on {self.manifest['data']['name']}: {', '.join(self.probes)} at {count} layers>"
