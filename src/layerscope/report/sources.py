"""What a report is about, whatever the run: curves over layers, scores over layers, or a block of
words, charts and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from layerscope.choose.choice import Choice
from layerscope.core.charts import Chart, ChoiceGrid, Line
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.maps import LayerMap
from layerscope.profiling.run import EntropyValley, entropy_valley
from layerscope.store import StoredRun

__all__ = [
    "Block",
    "Chart",
    "ChoiceGrid",
    "Curves",
    "Line",
    "Scores",
    "Section",
    "Source",
    "of_run",
    "weights_text",
]


@dataclass(kw_only=True)
class Common:
    """What every part of a report has beside its contents. `facts` are the conventions, by name."""

    family: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    identity: ModelIdentity | None = None
    path: str | None = None
    label: str = ""
    run: Any = None
    map: LayerMap | None = None


def of_run(run: Any) -> dict[str, Any]:
    """The same of a finished run, but for its facts."""
    model, folder = run.manifest.get("model"), getattr(run, "path", None)
    known = {"warnings": [str(warning) for warning in run.manifest.get("warnings", ())], "run": run}
    known["map"] = run.find_map() if isinstance(run, StoredRun) else None
    if isinstance(model, dict):
        known |= {"family": str(model.get("family", "")), "identity": ModelIdentity.of(model)}
    return known | {"path": None if folder is None else str(folder)}


@dataclass
class Curves(Common):
    """Metrics of one model at its sites. `table` has the columns of a profile."""

    model: str
    n_blocks: int
    final_norm: str
    table: pd.DataFrame

    @property
    def valley(self) -> EntropyValley | None:
        """The valley of prompt entropy, if it has one."""
        return entropy_valley(self.table)


@dataclass
class Scores(Common):
    """Scores of one model: `table` has task, readout, layer, score, gain (with its interval) and
    tied."""

    model: str
    n_blocks: int
    table: pd.DataFrame
    tasks: list[str]
    task_types: dict[str, str]
    readouts: list[str]
    mean_tasks: list[str] | None = None  # what means are over; None: all tasks

    @property
    def reference(self) -> str:
        """The readout that others are compared with: the common default where it was scored."""
        return DEFAULT_READOUT if DEFAULT_READOUT in self.readouts else self.readouts[0]

    def grid(self, readout: str) -> pd.DataFrame:
        """Scores of one readout: a row per task, a column per layer."""
        rows = self.table[self.table["readout"] == readout]
        scored = set(rows["task"])
        return rows.pivot(index="task", columns="layer", values="score").reindex(
            [task for task in self.tasks if task in scored]
        )

    def mean(self, readout: str) -> pd.Series:
        """Mean over tasks by layer; none where a task has no score."""
        grid = self.grid(readout)
        return grid.loc[
            [task for task in grid.index if task in (self.mean_tasks or grid.index)]
        ].mean(axis=0, skipna=False)

    @property
    def mean_says(self) -> str:
        """What a mean is over."""
        return f"{len(self.mean_tasks or self.tasks)} tasks"


@dataclass
class Block(Common):
    """A part of a report that speaks for itself: sentences (the answer first), charts, tables and
    drawn figures (PNG).

    A block with a `choice` decides which layer of its model the whole page points out, and stands
    before the charts; `lead` is what the page's headline then says, and `words` need not say again;
    `grid` is what it was chosen from. Tables named in `inline` are shown in the block itself; all
    can be chosen at the end of the page. Those named in `private` hold texts.
    """

    kind: str
    title: str
    model: str
    words: list[str]
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: list[bytes] = field(default_factory=list)
    choice: Choice | None = None
    lead: list[str] = field(default_factory=list)
    grid: ChoiceGrid | None = None
    inline: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)

    def words_below(self, headline: str) -> list[str]:
        """Return what the block itself says under a headline."""
        is_above = self.lead and self.lead[0].removesuffix(".").lower() in headline.lower()
        return self.words if is_above else [*self.lead, *self.words]


Source = Curves | Scores | Block


@dataclass(frozen=True)
class Section:
    """How runs of one kind appear on the page. `read` turns a finished run into what the page shows
    of it."""

    kind: str
    read: Callable[[Any], Source]


def weights_text(model: dict[str, Any]) -> str:
    """Which weights a run read, in a few words."""
    sha = str(model.get("weights_sha256") or "")[:12]
    stored = model.get("quantization")
    return (f"quantized ({stored})" if stored else "as published") + (f", {sha}" if sha else "")
