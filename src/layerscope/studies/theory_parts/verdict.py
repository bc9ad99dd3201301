"""What the trials say, in words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from layerscope.studies.inequalities.base import SLACK, Trial
from layerscope.studies.inequalities.theorem5 import emptiness


def verdict(trials: Sequence[Trial], table: pd.DataFrame) -> list[str]:
    """Theorem 1 first, then every statement in the paper's order."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.statement.theorem, trial.statement.version), []).append(trial)
    first = sorted(groups, key=lambda key: key[0] != "Theorem 1")
    return [*(_sentence(groups[key]) for key in first), _trace(table)]


def _sentence(trials: Sequence[Trial]) -> str:
    statement = trials[0].statement
    name = f"{statement.theorem}, {statement.version}: {statement.text}."
    if not all(t.holds for t in trials):
        worst = min((t for t in trials if not t.holds), key=lambda t: t.margin)
        where = json.loads(worst.counterexample)
        origin = f"{where['kind']}, seed {where['seed']}" + (
            f", step {where['climbed']} of the climb" if "climbed" in where else ""
        )
        return f"{name} False: broken by {_counts(trials, broken=True)}, by up to {-worst.margin:.3g} ({origin})."
    broken = sum(t.violations for t in trials)
    if broken:
        return f"{name} Holds: {broken:,} outside in {_counts(trials)}, fewer than the {100 * statement.share:.0f} % it allows."
    margin = min(t.margin for t in trials)
    tight = "it is met exactly by some" if abs(margin) <= SLACK else f"tightest margin {margin:.2g}"
    empty = ""
    if (statement.theorem, statement.version) == ("Theorem 5", "printed"):
        empty = f" But it says nothing: where its probability is above zero, ε is more than {emptiness():,.0f} times N/L²."
    return f"{name} Holds in {_counts(trials)}; {tight}.{empty}"


def _counts(trials: Sequence[Trial], broken: bool = False) -> str:
    parts = []
    for search in ("random", "adversarial"):
        held = [t for t in trials if t.search == search]
        if held:
            checks, wrong = sum(t.checks for t in held), sum(t.violations for t in held)
            parts.append(f"{wrong:,} of {checks:,} {search} cases" if broken else f"{checks:,} {search} cases")
    return " and ".join(parts)


def _trace(table: pd.DataFrame) -> str:
    rows = table[table["metric"] == "dataset_entropy"].set_index(["theorem", "version", "x"])["value"]
    sizes = rows.index.get_level_values("x")
    few, many = int(sizes.min()), int(sizes.max())

    def at(version: str, n: int) -> list[str]:
        return [f"{float(rows[theorem, version, n]):.2f}" for theorem in ("Theorem 5", "Theorem 6")]

    fair, printed, start = at("trace divided", many), at("printed", many), at("printed", few)
    return (
        f"Once the trace is divided out, Theorems 5 and 6 say the same: {many} prompts in 16 dimensions have S_2 = {fair[0]} "
        f"nats under maximal and {fair[1]} under minimal prompt entropy. As printed, S_2 falls as prompts are added (from {few} "
        f"to {many}: {start[0]} to {printed[0]} and {start[1]} to {printed[1]}) and goes below zero: the difference between the "
        "theorems is the length of the mean vectors, not their diversity."
    )
