"""Runs of any kind, seen as curves over layers or as scores over layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT, readout_names
from layerscope.profiling.valley import Valley, find_valley

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Run


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
    weights: str | None = None
    path: str | None = None
    label: str = ""
    run: Any = None
    mean_only: bool = False  # its values are means over the tasks' own texts: they go with mean scores only

    @property
    def valley(self) -> Valley | None:
        """The valley of prompt entropy, if it has one."""
        return find_valley(self.table)


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
    weights: str | None = None
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
        held = set(rows["task"])
        return rows.pivot(index="task", columns="layer", values="score").reindex([task for task in self.tasks if task in held])

    def mean(self, readout: str) -> pd.Series:
        """Mean over tasks by layer; none where a task has no score."""
        grid = self.grid(readout)
        return grid.loc[[task for task in grid.index if task in (self.mean_tasks or grid.index)]].mean(axis=0, skipna=False)

    @property
    def mean_says(self) -> str:
        """What a mean is over."""
        return f"{len(self.mean_tasks or self.tasks)} tasks"


@dataclass
class Mark:
    """A layer of a model that is pointed out in every view. `kind` is chosen (by a rule) or best (by labelled scores).

    Gains over the last layer are in points (score × 100), None where nothing is claimed.
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


def from_run(run: Run) -> Curves:
    """A profile."""
    m = run.manifest
    model, c, counts = m["model"], m["conventions"], m["counts"]
    has_norm = c.get("final_norm_module") is not None
    facts = {
        "kind": "profile",
        "final norm": c["final_norm"] if has_norm else "none in this model",
        "texts": f"{m['corpus']['name']}, {counts['prompts']} {'images' if 'image_tokens' in c else 'prompts'}",
        "corpus": str(m["corpus"].get("fingerprint", ""))[:12],
        **_lengths(c, counts),
        "rows": c["metrics"]["rows"],
        "α": c["metrics"]["alpha"],
        "pooling": c.get("pooling"),
        "views": f"{c['views']}, {c['augmenter']}" if c.get("views") else "none",
        "preset": c["preset"],
        "seed": c["seed"],
        "intervals": c.get("intervals"),
        "weights": _weights(model),
        "precision": model.get("dtype"),
        "layerscope": m.get("layerscope"),
    }
    path = None if run.path is None else str(run.path)
    return Curves(
        str(model["name"]), str(model.get("family", "")), int(model["n_blocks"]), str(c["final_norm"]), run.table, facts,
        [str(w) for w in m["warnings"]], model.get("weights_sha256"), path, run=run,
    )  # fmt: skip


def _lengths(c: dict[str, Any], counts: dict[str, Any]) -> dict[str, Any]:
    """How long texts are and how many were cut; of images, which tokens are read and how many there are."""
    if "image_tokens" in c:
        attention = {"attention": c["attention"]} if "attention" in c else {}
        return {"tokens": f"{counts['tokens']['longest']} per image: {c['tokens']}", **attention}
    return {"longest text": f"{c['max_length']} tokens", "cut texts": f"{counts['truncated']} of {counts['prompts']}"}


def from_evaluation(run: Evaluation) -> Scores:
    """An evaluation."""
    m, scores = run.manifest, run.scores.copy()
    model, c = m["model"], m["conventions"]
    for table in (scores, gains := run.gains.copy()):
        table["readout"] = readout_names(table)
        table["name"] = _task_names(table)
    keys = ["name", "split", "readout", "layer"]
    gained = gains[[*keys, "gain", "ci_low", "ci_high", "tied_best"]]
    table = scores[[*keys, "score"]].merge(gained, on=keys, how="left")
    several = table.groupby("name")["split"].nunique()
    many = set(several[several > 1].index)
    table["task"] = [f"{n}, {s}" if n in many else n for n, s in zip(table["name"], table["split"], strict=True)]
    table["tied"] = [value is True or value == 1 for value in table["tied_best"]]
    kinds = dict(zip(table["task"], scores["task_type"], strict=True)) if "task_type" in scores else {}
    specs = m.get("tasks", {})
    facts = {
        "kind": "evaluation",
        "tasks": ", ".join(specs) if len(specs) <= 6 else f"{len(specs)} tasks",
        "longest text": f"{c['max_length']} tokens",
        "length of vectors": "1" if c.get("unit_length") else "as they come",
        "items": ", ".join(f"{t}: {s.get('items')}" for t, s in specs.items()) if len(specs) <= 6 else "all",
        "part of each task": next((f"{s['limit']} items" for s in specs.values() if s.get("limit")), "all of it"),
        "score": c.get("score"),
        "seed": c.get("seed"),
        "intervals": c.get("intervals"),
        "weights": _weights(model),
        "precision": model.get("dtype"),
        "layerscope": m.get("layerscope"),
    }
    undefined = [str(line) for line in m["undefined"]]
    warnings = [*map(str, m["warnings"]), *(f"undefined, left out: {line}" for line in undefined[:3])]
    warnings += [f"undefined, left out: {len(undefined) - 3} more readouts, in manifest.json"] if len(undefined) > 3 else []
    warnings += [f"{f['task']} could not be scored: {f['reason']}" for f in m["failed"]]
    warnings += [
        f"{n} of {m['counts']['texts']} texts were cut to {c['max_length']} tokens under template {template!r}."
        for template, n in (m["counts"].get("truncated") or {}).items()
        if n and not any("were cut" in w for w in m["warnings"])
    ]
    return Scores(
        str(model["name"]), str(model.get("family", "")), int(model["n_blocks"]),
        table[["task", "readout", "layer", "score", "gain", "ci_low", "ci_high", "tied"]],
        list(dict.fromkeys(table["task"])), kinds, list(dict.fromkeys(scores["readout"])), facts, warnings,
        model.get("weights_sha256"), str(run.path), run=run,
    )  # fmt: skip


def _task_names(table: pd.DataFrame) -> list[str]:
    return [str(t) if s in ("default", "") else f"{t} ({s})" for t, s in zip(table["task"], table["subset"], strict=True)]


def _weights(model: dict[str, Any]) -> str:
    sha = str(model.get("weights_sha256") or "")[:12]
    return (f"quantised ({model['quantisation']})" if model.get("quantisation") else "as published") + (f", {sha}" if sha else "")
