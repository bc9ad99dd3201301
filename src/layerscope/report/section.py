"""Sections of a report: one run as sentences, charts and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pandas as pd

from layerscope.choose.choice import Choice
from layerscope.core.charts import Chart, Figure, Line
from layerscope.maps import LayerMap
from layerscope.store import StoredRun

__all__ = ["Chart", "Drawing", "Line", "Section"]


@dataclass(frozen=True)
class Drawing:
    """A chart that a section draws itself, as wide as the page."""

    title: str
    says: str
    height: int
    draw: Callable[[], Figure]


@dataclass
class Section:
    """One run on the page and in a notebook.

    - `words`: sentences, the answer first. `lead`: sentences for the headline of the whole page,
      which the section need not say again.
    - `figures`: drawn figures (PNG).
    - `inline`: names of tables that stand in the section itself; all tables stand at the end of the
      page. `private`: names of tables that hold texts.
    - `facts`: the conventions of the run, by name.
    - `choice`: the layer that the page points out. With `first` the section stands before all
      charts, and its choice counts more than that of scores or profiles.
    - `rows`: what the charts that profiles, or evaluations, share are drawn from.
    """

    kind: str
    title: str
    model: str
    words: list[str]
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    lead: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    figures: list[bytes] = field(default_factory=list)
    inline: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    choice: Choice | None = None
    first: bool = False
    blocks: int = 0
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)
    label: str = ""
    run: Any = None
    map: LayerMap | None = None

    @classmethod
    def of(cls, run: Any, title: str, words: list[str], **parts: Any) -> Self:
        """Return the section of a finished run, with its name, warnings and map."""
        parts.setdefault("model", run.name)
        parts.setdefault("warnings", [str(warning) for warning in run.manifest.get("warnings", ())])
        parts.setdefault("map", run.find_map() if isinstance(run, StoredRun) else None)
        return cls(run.kind, title, words=words, run=run, **parts)

    @property
    def name(self) -> str:
        """The label, with what kind of run it is where a model has several."""
        kinds = {"profile": "profile", "evaluation": "scores"}
        return f"{self.label} ({kinds[self.kind]})" if self.kind in kinds else self.label

    def without_texts(self) -> Self:
        """Return the section with nothing of what a run's items say."""
        tables = {name: table for name, table in self.tables.items() if name not in self.private}
        layer_map = None if self.map is None else self.map.without_texts()
        return replace(self, tables=tables, map=layer_map)
