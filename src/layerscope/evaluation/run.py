"""A finished evaluation: scores of every layer and readout on every task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from layerscope.core.readout import READOUT_COLUMNS, Readout, rename_old_columns
from layerscope.core.runs import finished_manifest
from layerscope.evaluation.tables import GAIN_COLUMNS
from layerscope.store import RunFolder


@dataclass
class Evaluation:
    """What `layerscope.evaluate` returns. `scores` is tidy; `gains` compares each layer with the last on the same items."""

    kind: ClassVar[str] = "evaluation"

    scores: pd.DataFrame
    gains: pd.DataFrame
    manifest: dict[str, Any]
    path: Path

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Read a run's folder."""
        manifest = finished_manifest(path, cls.kind)
        folder = RunFolder(path)
        gains = rename_old_columns(folder.read_table("gains")).reindex(columns=GAIN_COLUMNS)
        return cls(rename_old_columns(folder.read_table("scores")), gains, manifest, Path(path))

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.manifest["model"]["name"])

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of the run's folder."""
        return {"scores": self.scores, "gains": self.gains}

    @property
    def failed(self) -> list[dict[str, str]]:
        """Tasks that could not be scored, and why."""
        return self.manifest["failed"]

    def best(self) -> pd.DataFrame:
        """Per task: the best layer and readout, against the last layer under the same readout and under the default one."""
        rows = []
        for (task, split, subset), group in self.gains.groupby(["task", "split", "subset"], sort=False):
            top = group.iloc[int(group["score"].argmax())]
            readout = READOUT_COLUMNS
            same = group[(group[readout] == top[readout]).all(axis=1)]
            last = same.iloc[int(same["layer"].argmax())]
            rows.append(
                {
                    "task": task,
                    "split": split,
                    "subset": subset,
                    "best": top["score"],
                    "layer": int(top["layer"]),
                    "readout": Readout.from_row(top.to_dict()).name,
                    "last": last["score"],
                    "gain": top["gain"],
                    "ci_low": top["ci_low"],
                    "ci_high": top["ci_high"],
                    "default_last": top["score"] - top["gain_over_default"],
                    "gain_over_default": top["gain_over_default"],
                    "default_ci_low": top["default_ci_low"],
                    "default_ci_high": top["default_ci_high"],
                    "tied": same.loc[same["tied_best"], "layer"].astype(int).tolist(),
                }
            )
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, Any]:
        """What a reader wants first, as plain values."""
        return {
            "model": self.manifest["model"]["name"],
            "tasks": self.best().to_dict(orient="records"),
            "undefined": self.manifest["undefined"],
            "failed": self.failed,
            "warnings": self.manifest["warnings"],
            "run": str(self.path),
        }
