"""What a report is about, whatever the run: curves over layers, scores over layers, or a block of
words, charts and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from layerscope.atlas.overlay import OURS
from layerscope.atlas.summary import or_none
from layerscope.core.charts import Chart, ChoiceGrid, Line
from layerscope.core.columns import PROFILE, names
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL
from layerscope.core.tables import plain_columns
from layerscope.correlation import same_tasks
from layerscope.maps import LayerMap
from layerscope.metrics import NORMALIZATIONS
from layerscope.profiling.run import EntropyValley, entropy_valley
from layerscope.selection.choice import Choice
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
    "from_atlas",
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
    mean_only: bool = (
        False  # its values are means over the tasks' own texts: they go with mean scores only
    )

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

    def __post_init__(self) -> None:
        self.tables = {title: plain_columns(table) for title, table in self.tables.items()}

    def told(self, headline: str) -> list[str]:
        """What the block itself says under a headline."""
        said = self.lead and self.lead[0].removesuffix(".").lower() in headline.lower()
        return self.words if said else [*self.lead, *self.words]


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
    stored = model.get("quantization") or model.get(
        "quantisation"
    )  # as runs of earlier versions spell it
    return (f"quantized ({stored})" if stored else "as published") + (f", {sha}" if sha else "")


_WHERE = {"wikitext": "wikitext", "mteb": "mean over the MTEB datasets", "imagenet": "imagenet"}
# metrics that are not on the scale of ours of the same name
_OLDER = "these metrics are from the older generation of the released code: do not compare their values with the others."


def from_atlas(name: str) -> list[Curves | Scores]:
    """Everything that was published about one model: metrics on wikitext, on the MTEB datasets, on
    images; MTEB scores."""
    from layerscope import atlas

    known = atlas.find_model(name)
    out: list[Curves | Scores] = []
    values = or_none(atlas.metric_values, known, normalization=None)
    if values is not None:
        values = values[values["normalization"].isin(NORMALIZATIONS)]
        on_mteb = values["dataset"].str.startswith("mteb/")
        for where in _WHERE:
            rows = values[on_mteb if where == "mteb" else values["dataset"] == where]
            if len(rows) and (
                where != "mteb" or rows["dataset"].nunique() > 5
            ):  # too few for a mean
                out.append(_curves(known.name, known.family, rows, where))
    scores = (
        or_none(atlas.select_scores, known, "english")
        if out
        else atlas.select_scores(known, "english")
    )
    return out if scores is None else [*out, _scores(known.name, known.family, scores)]


def _curves(name: str, family: str, rows: pd.DataFrame, where: str) -> Curves:
    aim = family == "aim"
    layers = rows["layer"].astype(int) + (1 if aim else 0)
    rows = rows.assign(layer=layers, metric=rows["metric"].replace(OURS))
    counted = rows.groupby("metric")["dataset"].transform("nunique")
    keys = ["metric", "normalization", "layer", "depth"]
    complete = rows.assign(datasets=counted)
    table = complete.groupby(keys, as_index=False).agg(
        value=("value", "mean"), n=("dataset", "nunique"), of=("datasets", "first")
    )
    partial = (
        table["n"] < table["of"]
    )  # a mean over fewer datasets than at the other layers is another quantity
    table = (
        table[~partial]
        .assign(sink="keep", site=table["layer"].map(site_of))
        .reindex(columns=names(PROFILE))
    )
    blocks = int(table["layer"].max())
    has_norm = (
        not family.startswith("bert") and where != "imagenet"
    )  # image models return their states without it
    warnings = [
        "published values: the paper's released code and its conventions (see docs/conventions.md); no intervals were published."
    ]
    if has_norm:
        warnings.append(
            "published metrics have the final norm at the last layer only: that point is another kind of vector."
        )
    older = (rows["split"] == "train(unrecorded)").any() or (
        where == "mteb" and family.startswith("LLM2Vec")
    )
    facts = {
        "kind": "published metrics",
        "final norm": "hf"
        if has_norm
        else "not applied"
        if where == "imagenet"
        else "none in this model",
        "texts": _WHERE[where],
        "rows": "centered-unit, negative Gram entries set to 0",
        "α": 1.0,
        "preset": "released",
        "source": "OFSkean/information_flow",
    }
    own: dict[str, Any] = {
        "family": _family(family),
        "facts": facts,
        "warnings": [*warnings, *([_OLDER] if older else [])],
    }
    return Curves(name, blocks, "hf", table, where == "mteb", label=f"{name} · {where}", **own)


def _scores(name: str, family: str, published: pd.DataFrame) -> Scores:
    blocks = round(float((published["layer"] / published["depth"]).dropna().iloc[-1]))
    last = published[published["layer"] == blocks].set_index("task")["score"]
    table = pd.DataFrame(
        {
            "task": published["task"],
            "readout": DEFAULT_READOUT,
            "layer": published["layer"],
            "score": published["score"],
            "gain": published["score"] - published["task"].map(last),
            **dict.fromkeys(INTERVAL, float("nan")),
            "tied": False,
        }
    )
    mean_tasks = sorted(set(same_tasks(published)["task"]))
    tasks = sorted(set(published["task"]))
    warnings = ["published scores: no intervals were published, so nothing says which layers tie."]
    if len(mean_tasks) < len(tasks):
        layers = published["layer"].nunique()
        warnings.append(
            f"of {len(tasks)} tasks, {len(mean_tasks)} are scored wherever most are ({layers} layers have any): "
            "means are over those."
        )
    facts = {
        "kind": "published scores",
        "tasks": f"{len(tasks)} tasks",
        "convention": "english: STS17 = en-en, AmazonCounterfactual = mean of en and en-ext",
        "score": "mteb's main score",
        "source": "OFSkean/information_flow",
    }
    kinds = dict(zip(published["task"], published["task_type"], strict=True))
    own: dict[str, Any] = {
        "family": _family(family),
        "facts": facts,
        "warnings": warnings,
        "label": name,
    }
    return Scores(name, blocks, table, tasks, kinds, [DEFAULT_READOUT], mean_tasks, **own)


def _family(family: str) -> str:
    """The atlas's name of a family as the palette knows it."""
    low = family.lower()
    return "llm2vec" if low.startswith("llm2vec") else "bert" if low.startswith("bert") else low
