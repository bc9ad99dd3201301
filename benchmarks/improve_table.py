"""The tables of `improve.py`'s measurements: what the product's rule chooses from what its judges
said, and what that scores.

Headroom is the best candidate of a task minus today's readout (plain text, mean over tokens, final
norm, last layer); "recovered" is the share of it that a choice gets, pooled over tasks. Settings
were looked at on SmolLM2 and the seven tasks of `TUNED`; all other tasks, and all of Gemma, are
reported with them.

    python benchmarks/improve_table.py measured/smollm2-135m measured/gemma3-270m
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from improve_changes import BLEND
from improve_tasks import TUNED

from layerscope.core.readout import Readout
from layerscope.core.templates import names_of
from layerscope.improving.choose import decide, relative_costs
from layerscope.improving.judging import Panel, prefers_plain_text
from layerscope.selection.judges import ScoredCandidates, combined
from layerscope.selection.judges.few_labels import LABELS_SHARE

CONSISTENCY = "self-consistency"
OTHERS = ("LeeSimilarity", "SentimentSnippets", "SmsSpam", "TrecQuestions")
REFERENCE = ("plain", "echo", "one-word")
"""Templates of a smaller grid, by which other measurements of such choices can be compared."""

STRANGE = ("FreeSolvSmiles", "SolubilitySmiles")
"""Molecules as SMILES: a domain of which the judge knows nothing."""


@dataclass
class Measured:
    """One model and task."""

    name: str
    arrays: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        self.readouts = [
            Readout.parse(name) if not name.startswith(BLEND) else _blend(name)
            for name in self.arrays["readouts"]
        ]
        self.layers, self.scores = self.arrays["layers"].tolist(), self.arrays["scores"]
        self.default = float(self.scores[self.readouts.index(Readout()), -1])
        self.costs = relative_costs(self.arrays["tokens"].tolist(), self.layers, self.layers[-1])
        self.names = self.arrays["judges"].tolist()

    def judgment(self, name: str) -> ScoredCandidates:
        """What a judge said, with its resamples."""
        at = self.names.index(name)
        score = self.arrays["judge_scores"][at].astype(np.float64)
        draws = score[..., None] + self.arrays["judge_draws"][at].astype(np.float64)
        return ScoredCandidates(score, draws, judge=name)

    def row(self, judgment: ScoredCandidates, which: Sequence[int]) -> dict[str, float | str]:
        """The judge's favorite among some readouts, and what the product's rule makes of it."""
        part, scores = judgment.only(which), self.scores[list(which)]
        readouts = [self.readouts[i] for i in which]
        alone = judgment.judge.startswith(CONSISTENCY)
        panel = Panel(None, Readout(), None)  # nobody but the model itself
        eligible = panel.eligible(readouts, float(self.arrays["tokens"][0])) if alone else None
        best = part.best()
        second = None if alone else self.judgment(f"{CONSISTENCY} alone").only(which)
        decided = decide(
            part, readouts, self.layers, self.costs[list(which)], eligible=eligible, second=second
        )
        chosen = (
            [readout.name for readout in readouts].index(str(decided.readout)),
            self.layers.index(decided.layer),
        )
        return {
            "favorite": float(scores[best]), "chosen": float(scores[chosen]), "best": float(np.nanmax(scores)),
            "at": f"{readouts[chosen[0]].name} {self.layers[chosen[1]]}", "cost": float(self.costs[list(which)][chosen]),
            "default": self.default, "task": self.name, "kept": float(decided.abstained),
            "agreement": float(part.score[chosen]),
            "by words": float(prefers_plain_text(part, readouts)) if len(which) > 1 else 0.0,
        }  # fmt: skip


def _blend(name: str) -> Readout:
    _, pooling, norm, sink, centering = name.split("/")
    return Readout(BLEND, pooling, norm, sink, centering)


def sets_of(readouts: Sequence[Readout]) -> dict[str, list[int]]:
    """The readouts that are offered: all; one pass per text (as with labels); the product's default
    templates; layers alone."""
    numbered = list(enumerate(readouts))
    return {
        "everything": [i for i, r in numbered],
        "one pass": [i for i, r in numbered if r.template not in (BLEND, "echo")],
        "default": [i for i, r in numbered if r.template in names_of("tried")],
        "with the mean of eight": [
            i for i, r in numbered if r.template in (*names_of("tried"), BLEND)
        ],
        "--labels, all prompts": [i for i, r in numbered if r.template != "echo"],
        "layers alone": [i for i, r in numbered if r == Readout()],
    }


def summary(rows: Sequence[dict], key: str) -> dict[str, float]:
    """Mean, pooled share of the headroom, and the worst task against the default."""
    got, default, best = (
        np.array([row[name] for row in rows]) for name in (key, "default", "best")
    )
    return {
        "mean": got.mean(),
        "share": (got - default).sum() / max((best - default).sum(), 1e-9),
        "worst": (got - default).min(),
    }


def read(folder: Path) -> tuple[str, list[Measured]]:
    """A model's measurements."""
    files = sorted(folder.glob("*.npz"))
    tasks = [Measured(file.stem, dict(np.load(file, allow_pickle=False))) for file in files]
    return json.loads((folder / "settings.json").read_text())["name"], tasks


def judges_of(
    tasks: Sequence[Measured],
) -> dict[str, Callable[[Measured], ScoredCandidates | None]]:
    """The rows of the tables: every judge, and labels with a judge."""
    names = list(dict.fromkeys(name for task in tasks for name in task.names))

    def single(name: str) -> Callable[[Measured], ScoredCandidates | None]:
        return lambda task: task.judgment(name) if name in task.names else None

    def both(name: str) -> Callable[[Measured], ScoredCandidates | None]:
        def judge(task: Measured) -> ScoredCandidates | None:
            if name not in task.names:
                return None
            return combined([task.judgment(name), task.judgment("judge")], [LABELS_SHARE, 1.0])

        return judge

    found = {name: single(name) for name in names}
    return found | {f"{name} + judge": both(name) for name in names if "labels" in name}


def show(name: str, tasks: list[Measured]) -> None:
    """Everything about one model."""
    main = [task for task in tasks if task.name not in (*OTHERS, *STRANGE)]
    rest = {"tasks not tuned on": [t for t in main if t.name not in TUNED]}
    print(
        f"\n== {name}: {len(main)} tasks; the best is that of all readouts, each task's own; * tuned on (with SmolLM2)"
    )
    print(
        f"{'task':30}{'today':>8}{'chosen':>8}{'8 passes':>9}{'best':>8}{'judge':>8}{'cost':>6}  chosen at, in one pass"
    )
    for task in [*main, *(t for t in tasks if t not in main)]:
        sets = sets_of(task.readouts)
        row, more = (
            task.row(task.judgment("judge"), sets[offered])
            for offered in ("default", "with the mean of eight")
        )
        values = (
            task.default,
            row["chosen"],
            more["chosen"],
            float(np.nanmax(task.scores)),
            float(task.arrays["judge_layers"][-1]),
        )
        numbers = "".join(
            f"{value:{width}.1f}" for value, width in zip(values, (8, 8, 9, 8, 8), strict=True)
        )
        print(
            f"{task.name:30}{numbers}{row['cost']:6.2f}  {row['at']}{' *' if task.name in TUNED else ''}"
        )
    for offered in (
        "default",
        "with the mean of eight",
        "one pass",
        "--labels, all prompts",
        "everything",
        "layers alone",
    ):
        print(
            f"-- offered: {offered}. Mean, share of the headroom over all readouts, worst task against today's: "
            f"all tasks | {next(iter(rest))} | share of what is offered and of plain, echo and one-word (small grid), all tasks"
        )
        for label, judge in judges_of(main).items():
            groups = [[(task, judge(task)) for task in some] for some in (main, *rest.values())]
            rows = [
                [task.row(j, sets_of(task.readouts)[offered]) for task, j in some if j is not None]
                for some in groups
            ]
            if not rows[0]:
                continue
            if offered != "layers alone":
                for some, judged in zip(rows, groups, strict=True):
                    for row, (task, _) in zip(
                        some, [(t, j) for t, j in judged if j is not None], strict=True
                    ):
                        row["best"] = float(np.nanmax(task.scores))
            # the share of what was on offer as well: how well the judge chose, apart from what it
            # was given to choose from
            own = [
                task.scores[sets_of(task.readouts)[offered]]
                for task, j in groups[0]
                if j is not None
            ]
            of_offer = summary(
                [
                    row | {"best": float(np.nanmax(some))}
                    for row, some in zip(rows[0], own, strict=True)
                ],
                "chosen",
            )
            told = " | ".join(
                f"{s['mean']:5.1f} {100 * s['share']:4.0f} % {s['worst']:+6.1f}"
                for s in (summary(some, "chosen") for some in rows if some)
            )
            small = [
                task.scores[[i for i, r in enumerate(task.readouts) if r.template in REFERENCE]]
                for task, j in groups[0]
                if j
            ]
            of_small = summary(
                [
                    row | {"best": float(np.nanmax(some))}
                    for row, some in zip(rows[0], small, strict=True)
                ],
                "chosen",
            )
            offer = f"{100 * of_offer['share']:4.0f} % of what is offered, {100 * of_small['share']:4.0f} % of the small grid"
            base, words = (
                np.mean([row["default"] for row in rows[0]]),
                np.mean([row["by words"] for row in rows[0]]),
            )
            print(
                f"   {label:34}{len(rows[0]):3} tasks from {base:5.1f} | {told} | {offer} | warned of in {100 * words:3.0f} %"
            )
        if offered == "layers alone":
            _rivals(main)
    _changes(main)
    _by_template(main)


def _rivals(tasks: Sequence[Measured]) -> None:
    """Published ways to choose a layer of the default readout."""
    for rival in dict.fromkeys(name for task in tasks for name in task.arrays["rivals"].tolist()):
        rows = []
        for task in tasks:
            if rival in task.arrays["rivals"].tolist():
                values = task.arrays["rival_scores"][task.arrays["rivals"].tolist().index(rival)]
                layer = int(np.nanargmax(values))
                scores = task.scores[task.readouts.index(Readout())]
                rows.append(
                    {"favorite": scores[layer], "default": task.default, "best": np.nanmax(scores)}
                )
        s = summary(rows, "favorite")
        print(
            f"   {rival:34}{len(rows):3} tasks  favorite {s['mean']:5.1f} {100 * s['share']:4.0f} % {s['worst']:+5.1f}"
        )


def _changes(tasks: Sequence[Measured]) -> None:
    """Whitening and the like: the best layer for the mean over tasks, beside the same readout
    unchanged."""
    tasks = [task for task in tasks if "extra" in task.arrays]
    if not tasks:
        return
    print(
        f"-- changes of the vectors, and other places to read: mean over {len(tasks)} tasks at the best layer for that mean; "
        "STS; rest"
    )
    shown = {
        r.name: [task.scores[i] for task in tasks]
        for i, r in enumerate(tasks[0].readouts)
        if r.centering == "corpus"
    }
    names = tasks[0].arrays["extra"].tolist()
    shown |= {
        n: [task.arrays["extra_scores"][task.arrays["extra"].tolist().index(n)] for task in tasks]
        for n in names
    }
    bases = {n.split(" + ")[0] for n in names}
    sts = np.array([task.name.startswith("STS") for task in tasks])
    for label, rows in sorted(shown.items()):
        if label in bases or label in names:
            table = np.array(rows)
            mean = table.mean(0)
            k = int(np.nanargmax(mean))
            print(
                f"   {label:86}{mean[k]:6.1f} @ {k:2}  {table[sts, k].mean():6.1f} {table[~sts, k].mean():6.1f}"
            )


def _by_template(tasks: Sequence[Measured]) -> None:
    print(
        "-- by template: mean over tasks of the best layer and norm of each task; and of the one best for all tasks"
    )
    for template in dict.fromkeys(r.template for r in tasks[0].readouts):
        which = [i for i, r in enumerate(tasks[0].readouts) if r.template == template]
        each = np.mean([np.nanmax(task.scores[which]) for task in tasks])
        together = np.mean([task.scores[which] for task in tasks], 0)
        r, k = np.unravel_index(int(np.nanargmax(together)), together.shape)
        tokens = np.mean(
            [task.arrays["tokens"][which[0]] / task.arrays["tokens"][0] for task in tasks]
        )
        print(
            f"   {template:24}{each:6.1f}{together[r, k]:6.1f} at {tasks[0].readouts[which[r]].name} {k}, "
            f"{tokens:.1f} × the tokens"
        )


def rows_of(name: str, tasks: Sequence[Measured]) -> list[dict[str, float | str]]:
    """One row per task: today, the choice, and the best, in points."""
    rows = []
    for task in tasks:
        sets, judgment = sets_of(task.readouts), task.judgment("judge")
        one, eight = (
            task.row(judgment, sets[offered]) for offered in ("default", "with the mean of eight")
        )
        best, own = float(np.nanmax(task.scores)), float(task.arrays["judge_layers"][-1])
        values = (task.default, float(one["chosen"]), float(eight["chosen"]), best, own)
        names = ("today", "one pass", "eight passes", "best", "judge")
        rows.append(
            {
                "model": name,
                "task": task.name,
                **{key: round(value, 2) for key, value in zip(names, values, strict=True)},
            }
        )
    return rows


def main() -> None:
    """Tables of every folder given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument(
        "--csv", type=Path, help="write today's score, the choice and the best of every task here"
    )
    args = parser.parse_args()
    rows: list[dict[str, float | str]] = []
    for folder in args.folders:
        name, tasks = read(folder)
        show(name, tasks)
        rows += rows_of(name, tasks)
    if args.csv is not None:
        with args.csv.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
