"""Study `theory`: the paper's theorems, tested on random and on adversarial cases.

Tries Lemma 1 and Theorems 1, 5, 6 and 7 (as printed, corrected, and with the trace divided out) on
random cases of several kinds, then climbs from random cases towards a violation. It needs no model
and no texts.

Table: `margin` rows (one per statement, kind and search, with the counter-example), `point` and
`dataset_entropy` rows for the figure. Figure: Theorem 1 as a cloud of matrices; Theorems 5 and 6
with and without the trace. Verdict: a sentence per statement.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.columns import VALUE, names
from layerscope.metrics.base import RESAMPLES
from layerscope.progress import Progress
from layerscope_paper.drawing import COLORS, style_axis
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import Figure, draw_band, grid
from layerscope_paper.studies.shared.models import Request
from layerscope_paper.studies.shared.numbers import in_short, join_words, percentile_interval
from layerscope_paper.theorems.theorems import STATEMENTS, collisions, draw_theorem5, emptiness
from layerscope_paper.theorems.trials import (
    KINDS,
    SLACK,
    Trial,
    draw_matrix,
    effective_rank,
    renyi,
    search,
    shares,
    unit,
)

COLUMNS = ["theorem", "version", "statement", "kind", "search", "metric", "x"]
COLUMNS += [*names(VALUE), "violations", "holds", "counterexample"]
_POINTS = 60  # matrices of each kind in the figure
_SIZES = (2, 4, 8, 16, 32)  # prompts N, at D = 16
_DRAWS = 40


class Theory(Study):
    """Lemma 1 and Theorems 1, 5, 6 and 7: as printed, corrected, and with the trace divided out."""

    name = "theory"
    title = "The paper's inequalities, tested"
    paper = "Theorems 1, 5, 6, 7; Lemma 1; App. G"
    models = (0, 0)
    texts = False
    options = (
        Option(
            "matrices",
            10_000,
            "random cases per statement over all kinds; a tenth or less of costly statements",
            least=1,
        ),
        Option("starts", 4, "searches for a violation per kind, by climbing", least=0),
        Option("steps", 250, "steps per climb", least=0),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Try every statement on random cases, then climb."""
        options = request.options
        trials = try_all(
            options["matrices"], options["starts"], options["steps"], request.seed, bar
        )
        table = tabulate(trials, request.seed)
        conventions = {
            "margin": (
                "in nats (Theorems 5 and 6: of e^(−S_2)); negative where a case breaks the "
                "statement by more than 1e-9"
            ),
            "source": "arXiv 2502.02013, Section 3.4 and Appendix G",
            "arithmetic": "float64",
        }
        return Result(table, verdict(trials, table), conventions, [])

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw Theorem 1 as a cloud of matrices; Theorems 5 and 6 with and without the trace."""
        figure, axes = grid(1, 2, 9.6, 4.0)
        _draw_ranks(axes[0, 0], table[table["metric"] == "point"])
        _draw_entropies(axes[0, 1], table[table["metric"] == "dataset_entropy"])
        return figure


def try_all(matrices: int, starts: int, steps: int, seed: int, bar: Progress) -> list[Trial]:
    """Return all trials, statement by statement and kind by kind."""
    trials = []
    bar.begin("theorems|kinds of case", sum(len(s.kinds) for s in STATEMENTS))
    for statement in STATEMENTS:
        cases = max(1, -(-matrices // (statement.every * len(statement.kinds))))
        for kind in statement.kinds:
            trials.append(search(statement, kind, cases, seed))
            if statement.nudge is not None and starts and steps:
                trials.append(search(statement, kind, starts, seed, steps))
            bar.advance(1)
    return trials


def tabulate(trials: Sequence[Trial], seed: int) -> pd.DataFrame:
    """Return `margin` rows of the trials (value: the tightest margin, n: checks), and `point` and
    `dataset_entropy` rows for the figure."""
    rows: list[dict[str, Any]] = [
        {
            "theorem": t.statement.theorem,
            "version": t.statement.version,
            "statement": t.statement.text,
            "kind": t.kind,
            "search": t.search,
            "metric": "margin",
            "value": t.margin,
            "n": t.checks,
            "violations": t.violations,
            "holds": t.holds,
            "counterexample": t.counterexample,
        }
        for t in trials
    ]
    return pd.DataFrame([*rows, *_rank_rows(seed), *_entropy_rows(seed)], columns=COLUMNS)


def _rank_rows(seed: int) -> list[dict[str, Any]]:
    """Return the entropy rank (x) and effective rank (value) of some matrices of each kind."""
    rows = []
    for (k, kind), i in product(enumerate(KINDS), range(_POINTS)):
        z = draw_matrix(kind, np.random.default_rng([seed, k, i]))["z"]
        point = {"x": math.exp(renyi(shares(z), 1.0)), "value": effective_rank(z), "n": 1}
        rows.append({"theorem": "Theorem 1", "kind": kind, "metric": "point", **point})
    return rows


def _entropy_rows(seed: int) -> list[dict[str, Any]]:
    """Return S_2 of N prompts (x) with and without the trace, for maximal and minimal prompt
    entropy: the mean over draws."""
    rows = []
    width = 16
    for n in _SIZES:
        drawn_values: dict[tuple[str, str], list[float]] = {}
        for i in range(_DRAWS):
            rng = np.random.default_rng([seed, n, i])
            rotated = draw_theorem5(f"N={n}, D={width}", rng)["q"]
            equal = unit(rng.normal(size=(n, width)))
            for (name, q), version in product(
                (("Theorem 5", rotated), ("Theorem 6", equal)), ("printed", "trace divided")
            ):
                value = -math.log(collisions(q, divided=version == "trace divided"))
                drawn_values.setdefault((name, version), []).append(value)
        for (name, version), values in drawn_values.items():
            rng = np.random.default_rng([seed, n])
            means = rng.choice(values, (RESAMPLES, len(values))).mean(axis=1)
            interval = percentile_interval(float(np.mean(values)), means, len(values))
            setting = {"theorem": name, "version": version, "kind": f"D={width}", "x": n}
            rows.append({**setting, "metric": "dataset_entropy", **interval.columns})
    return rows


def verdict(trials: Sequence[Trial], table: pd.DataFrame) -> list[str]:
    """Describe Theorem 1 first, then every statement in the paper's order."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.statement.theorem, trial.statement.version), []).append(trial)
    order = sorted(groups, key=lambda key: key[0] != "Theorem 1")
    broken = [key for key, group in groups.items() if not all(t.holds for t in group)]
    printed = dict.fromkeys(theorem for theorem, version in broken if version.startswith("printed"))
    answer = "no statement was broken as printed"
    if printed:
        corrected = "every corrected version holds"
        if any(version == "corrected" for _, version in broken):
            corrected = "see below"
        answer = f"{join_words(printed)} can be broken as printed, and {corrected}"
    return [in_short(answer), *(_sentence(groups[key]) for key in order), _trace(table)]


def _sentence(trials: Sequence[Trial]) -> str:
    """Describe the outcome of one statement."""
    statement = trials[0].statement
    name = f"{statement.theorem}, {statement.version}: {statement.text}."
    failed = [t for t in trials if not t.holds]
    if failed:
        worst = min(failed, key=lambda t: t.margin)
        case = json.loads(worst.counterexample)
        origin = f"{case['kind']}, seed {case['seed']}"
        if "climbed" in case:
            origin += f", step {case['climbed']} of the climb"
        return (
            f"{name} False: broken by {_counts(trials, broken=True)}, by up to {-worst.margin:.3g} "
            f"({origin})."
        )
    broken = sum(t.violations for t in trials)
    if broken:
        return (
            f"{name} Holds: {broken:,} outside in {_counts(trials)}, fewer than the "
            f"{100 * statement.share:.0f} % it allows."
        )
    margin = min(t.margin for t in trials)
    tight = "it is met exactly by some" if abs(margin) <= SLACK else f"tightest margin {margin:.2g}"
    text = f"{name} Holds in {_counts(trials)}; {tight}."
    if (statement.theorem, statement.version) == ("Theorem 5", "printed"):
        text += (
            " But it says nothing: where its probability is above zero, ε is more than "
            f"{emptiness():,.0f} times N/L²."
        )
    return text


def _counts(trials: Sequence[Trial], broken: bool = False) -> str:
    """Return the numbers of cases by search; with `broken`, those of violations too."""
    phrases = []
    for name in dict.fromkeys(t.search for t in trials):
        group = [t for t in trials if t.search == name]
        violations = f"{sum(t.violations for t in group):,} of " if broken else ""
        phrases.append(f"{violations}{sum(t.checks for t in group):,} {name} cases")
    return " and ".join(phrases)


def _trace(table: pd.DataFrame) -> str:
    """Describe the effect of the trace on Theorems 5 and 6."""
    rows = table[table["metric"] == "dataset_entropy"]
    values = rows.set_index(["theorem", "version", "x"])["value"]
    fewest_prompts = int(rows["x"].min())
    most_prompts = int(rows["x"].max())

    def at(version: str, n: int) -> list[str]:
        return [f"{values[theorem, version, n]:.2f}" for theorem in ("Theorem 5", "Theorem 6")]

    divided = at("trace divided", most_prompts)
    printed = at("printed", most_prompts)
    printed_few = at("printed", fewest_prompts)
    return (
        f"Once the trace is divided out, Theorems 5 and 6 say the same: {most_prompts} prompts "
        f"in 16 dimensions have S_2 = {divided[0]} nats under maximal and {divided[1]} under "
        f"minimal prompt entropy. As printed, S_2 falls as prompts are added (from "
        f"{fewest_prompts} to {most_prompts}: {printed_few[0]} to {printed[0]} and "
        f"{printed_few[1]} to {printed[1]}) and goes below "
        "zero: the difference between the theorems is the length of the mean vectors, not their "
        "diversity."
    )


def _draw_ranks(axis: Any, points: pd.DataFrame) -> None:
    kinds = points.groupby("kind", sort=False)
    look: dict[str, Any] = {"s": 8, "alpha": 0.7, "linewidths": 0}
    for color, (kind, rows) in zip([*COLORS, "grey"], kinds, strict=False):
        axis.scatter(rows["x"], rows["value"], color=color, label=kind, **look)
    top = float(points["value"].max()) * 1.05
    axis.plot([1, top], [1, top], color="grey", linewidth=1)
    axis.fill_between([1, top], [1, top], [1, 1], color="grey", alpha=0.12, linewidth=0)
    axis.text(
        top * 0.97,
        1 + 0.04 * top,
        "where Theorem 1 as printed\nputs every matrix",
        fontsize=7,
        ha="right",
        color="dimgrey",
    )
    axis.legend(fontsize=7, frameon=False, loc="upper left", markerscale=1.5)
    style_axis(
        axis,
        "Theorem 1: effective rank is the larger one",
        "entropy rank exp(S₁)",
        "effective rank",
    )


def _draw_entropies(axis: Any, rows: pd.DataFrame) -> None:
    dots = {"marker": "o", "markersize": 4, "linestyle": "none"}
    for color, theorem, name in (
        (COLORS[0], "Theorem 5", "maximal"),
        (COLORS[1], "Theorem 6", "minimal"),
    ):
        curves = dict(iter(rows[rows["theorem"] == theorem].groupby("version")))
        label = f"{name} prompt entropy (Th. {theorem[-1]})"
        look: dict[str, Any] = {"linestyle": ":", "linewidth": 1.3}
        look["label"] = f"{label}, as printed: no trace"
        draw_band(axis, curves["printed"], color, x="x", **look)
        # the two solid curves coincide, so one is drawn as marks
        look = dots if name == "minimal" else {"linewidth": 1.6}
        look["label"] = f"{label}, trace divided out"
        draw_band(axis, curves["trace divided"], color, x="x", **look)
    axis.set_xscale("log", base=2)
    sizes = sorted(rows["x"].unique())
    axis.set_xticks(sizes, [f"{n:g}" for n in sizes])
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_ylim(top=float(rows["value"].max()) + 4)  # room for the legend
    axis.legend(fontsize=7, frameon=False, loc="upper right")
    style_axis(
        axis,
        "Theorems 5 and 6: the difference is the missing trace",
        "prompts N (D = 16)",
        "dataset entropy S₂ (nats)",
    )


STUDY = Theory()
