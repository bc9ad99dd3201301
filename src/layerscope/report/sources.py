"""What a report is about, whatever the run: curves over layers, scores over layers, or a block of words, charts and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.profiling.run import EntropyValley, entropy_valley
from layerscope.selection.choice import Choice


@dataclass
class Curves:
    """Metrics of one model at its sites. `table` has the columns of a profile; `facts` are the conventions, by name."""

    model: str
    family: str
    n_blocks: int
    final_norm: str
    table: pd.DataFrame
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    identity: ModelIdentity | None = None
    path: str | None = None
    label: str = ""
    run: Any = None
    mean_only: bool = False  # its values are means over the tasks' own texts: they go with mean scores only

    @property
    def valley(self) -> EntropyValley | None:
        """The valley of prompt entropy, if it has one."""
        return entropy_valley(self.table)


@dataclass
class Scores:
    """Scores of one model: `table` has task, readout, layer, score, gain, ci_low, ci_high and tied."""

    model: str
    family: str
    n_blocks: int
    table: pd.DataFrame
    tasks: list[str]
    task_types: dict[str, str]
    readouts: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    identity: ModelIdentity | None = None
    path: str | None = None
    label: str = ""
    run: Any = None
    mean_tasks: list[str] | None = None  # what means are over; None: all tasks

    @property
    def reference(self) -> str:
        """The readout that others are compared with: the common default where it was scored."""
        return DEFAULT_READOUT if DEFAULT_READOUT in self.readouts else self.readouts[0]

    def grid(self, readout: str) -> pd.DataFrame:
        """Scores of one readout: a row per task, a column per layer."""
        rows = self.table[self.table["readout"] == readout]
        scored = set(rows["task"])
        return rows.pivot(index="task", columns="layer", values="score").reindex([task for task in self.tasks if task in scored])

    def mean(self, readout: str) -> pd.Series:
        """Mean over tasks by layer; none where a task has no score."""
        grid = self.grid(readout)
        return grid.loc[[task for task in grid.index if task in (self.mean_tasks or grid.index)]].mean(axis=0, skipna=False)

    @property
    def mean_says(self) -> str:
        """What a mean is over."""
        return f"{len(self.mean_tasks or self.tasks)} tasks"


@dataclass(frozen=True)
class Line:
    """One curve over layers; `note` is a few words beside one of its layers."""

    name: str
    layers: Sequence[int]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    blocks: int | None = None  # of the model; None: the last layer's number
    note: tuple[int, str] | None = None


@dataclass(frozen=True)
class Chart:
    """Curves on the same axes."""

    title: str
    lines: list[Line]
    unit: str = ""
    says: str = ""


@dataclass
class Block:
    """A part of a report that speaks for itself: sentences (the answer first), charts, tables and drawn figures (PNG).

    A block with a `choice` decides which layer of its model the whole page points out, and stands before the charts. Tables
    named in `inline` are shown in the block itself; all can be chosen at the end of the page.
    """

    kind: str
    title: str
    model: str
    words: list[str]
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: list[bytes] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    path: str | None = None
    label: str = ""
    family: str = ""
    choice: Choice | None = None
    inline: list[str] = field(default_factory=list)


Source = Curves | Scores | Block


@dataclass(frozen=True)
class Section:
    """How runs of one kind appear on the page. `read` turns a finished run into what the page shows of it."""

    kind: str
    read: Callable[[Any], Source]


@dataclass
class Mark:
    """A layer of a model that is pointed out in every view. `kind` is chosen (by a rule) or best (by labeled scores).

    Gains are in points (score × 100), None where nothing is claimed. `expected_gain` is over the last layer read the default way;
    of it, `readout_gain` comes from reading texts in another way and `layer_gain` from reading another layer.
    """

    model: str
    layer: int
    n_blocks: int
    kind: str
    text: str
    readout: str | None = None
    rule: str | None = None
    warnings: list[str] = field(default_factory=list)
    expected_gain: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    risk_of_loss: float | None = None
    abstained: bool = False
    score: float | None = None
    readout_gain: float | None = None
    layer_gain: float | None = None
    tied: list[int] = field(default_factory=list)


def weights_text(model: dict[str, Any]) -> str:
    """Which weights a run read, in a few words."""
    sha = str(model.get("weights_sha256") or "")[:12]
    stored = model.get("quantization") or model.get("quantisation")  # as runs of earlier versions spell it
    return (f"quantized ({stored})" if stored else "as published") + (f", {sha}" if sha else "")
