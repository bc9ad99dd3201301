"""What benchmarks/train_interventions.py found: means and paired differences over seeds, as tables
and in words.

python benchmarks/interventions_table.py OUT    # the tables again, from OUT/runs.json
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from layer_penalties import middle_layers

from layerscope.core.statistics import Interval, student_interval

OBJECTIVES = ("ar", "mlm")
ARMS: dict[str, tuple[str, float] | None] = {
    "none": None,
    "compress": ("compress", 0.05),
    "spread": ("spread", 0.05),
    "compress-strong": ("compress", 0.5),
    "spread-strong": ("spread", 0.5),
    "decorrelate": ("decorrelate", 0.2),
}
BASE = ("none", "compress", "spread")
EFFECTS = {"compress": 1, "spread": -1}
CLASSIFICATION = ("ReviewSentiment", "TrecQuestions", "SmsSpam", "SentimentSnippets")
# Means are over these. ReviewSentiment is shown alone: in the stored results its training side is
# mostly negative reviews of one source and its test side mostly positive ones of another.
PROBES = CLASSIFICATION[1:]
SCORED_PAIRS = "LeeSimilarity"
SHOWN = (
    "middle_entropy", "held_out_loss", "valley_share", "probe_middle", "probe_best", "probe_last", "similarity_best",
    "similarity_last", "found_again_best",
)  # fmt: skip


def dose_name(effect: str, weight: float) -> str:
    """What an arm of one strength is called.

    >>> dose_name("compress", 0.01), signed_weight("spread 0.01"), signed_weight("none")
    ('compress 0.01', -0.01, 0.0)
    """
    return f"{effect} {weight:g}"


def signed_weight(arm: str) -> float:
    """What the entropy is multiplied by before it is added to the loss."""
    effect, _, weight = arm.partition(" ")
    return EFFECTS[effect] * float(weight) if weight else 0.0


def facts_of(run: dict[str, Any]) -> dict[str, float]:
    """The numbers that arms are compared by."""
    layers = run["layers"]
    last = len(layers["entropy_keep"]) - 1
    middle = middle_layers(last)
    tasks = np.array([layers[name] for name in PROBES if name in layers])  # (tasks, layers)
    probes = 100 * tasks.mean(0)
    valley = run["valleys"].get(
        "entropy_keep", {"share": math.nan, "clear": False, "layer": math.nan}
    )
    out = {
        "held_out_loss": run["held_out_loss"],
        "middle_entropy": float(np.mean([layers["entropy_keep"][k] for k in middle])),
        "last_entropy": layers["entropy_keep"][last],
        "middle_dataset_entropy": float(np.mean([layers["dataset_entropy"][k] for k in middle])),
        "middle_sink_ratio": float(np.mean([layers["sink_ratio"][k] for k in middle])),
        "valley_share": 100 * valley["share"],
        "valley_clear": float(valley["clear"]),
        "valley_layer": float(valley["layer"]),
        "probe_middle": float(probes[middle].mean()),
        "probe_best": float(probes.max()),
        "probe_best_layer": float(probes.argmax()),
        "probe_last": float(probes[last]),
        "similarity_middle": 100 * float(np.mean([layers[SCORED_PAIRS][k] for k in middle])),
        "similarity_best": 100 * float(np.nanmax(layers[SCORED_PAIRS])),
        "similarity_last": 100 * layers[SCORED_PAIRS][last],
        "found_again_middle": 100 * float(np.mean([layers["found_again"][k] for k in middle])),
        "found_again_best": 100 * float(np.max(layers["found_again"])),
        "found_again_last": 100 * layers["found_again"][last],
    }
    if "attention_first" in run:
        out |= {name: 100 * run[name] for name in ("sink_heads", "sink_heads_strict")}
        out["attention_first"] = 100 * float(np.mean(run["attention_first"]))
        out["first_longest"] = float(np.max(layers["first_ratio"]))
    return {
        **out,
        **{
            f"probe_best_{name}": 100 * float(np.max(layers[name]))
            for name in CLASSIFICATION
            if name in layers
        },
    }


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per objective, arm and quantity: the mean, and the paired difference to `none`, with
    intervals over seeds."""
    by = {(run["objective"], run["arm"], run["seed"]): facts_of(run) for run in runs}
    rows = []
    for objective in OBJECTIVES:
        for arm in dict.fromkeys([*ARMS, *(a for _, a, _ in by)]):
            seeds = sorted(seed for o, a, seed in by if (o, a) == (objective, arm))
            if not seeds:
                continue
            paired = [seed for seed in seeds if (objective, "none", seed) in by]
            for name in by[objective, arm, seeds[0]]:
                own = student_interval([by[objective, arm, seed][name] for seed in seeds])
                apart = Interval(math.nan)
                if arm != "none" and paired:
                    differences = [
                        by[objective, arm, seed][name] - by[objective, "none", seed][name]
                        for seed in paired
                    ]
                    apart = student_interval(differences)
                rows.append(
                    {
                        "objective": objective, "arm": arm, "quantity": name, "seeds": own.n, "mean": own.value, "low": own.low,
                        "high": own.high, "difference": apart.value, "difference_low": apart.low, "difference_high": apart.high,
                    }
                )  # fmt: skip
    return rows


def verdict(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What each arm did to loss, entropy, valley and scores, in words."""
    said = []
    of = {(row["objective"], row["arm"], row["quantity"]): row for row in rows}
    for objective in OBJECTIVES:
        for arm in dict.fromkeys(row["arm"] for row in rows):
            if arm == "none" or (objective, arm, "held_out_loss") not in of:
                continue
            said.append(f"{objective}, {arm} against none (difference, 95 % interval over seeds):")
            for name in SHOWN:
                row = of[objective, arm, name]
                apart = Interval(
                    row["difference"], row["difference_low"], row["difference_high"], row["seeds"]
                )
                word = {1: "higher", -1: "lower", 0: "not clearly different"}[apart.sign]
                said.append(f"  {name:20} {apart.format(3)}: {word}")
    return said


def write_table(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """A table as a file."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )


def tell_doses(out: Path) -> None:
    """Of OUT/doses.csv: every strength's paired difference to none, and what a step of strength
    changes; to OUT/summary.csv."""
    with (out / "doses.csv").open(encoding="utf-8") as stream:
        by = {(row["arm"], row["seed"]): row for row in csv.DictReader(stream)}
    seeds = sorted({seed for _, seed in by})
    known = [
        name
        for name, value in by["none", seeds[0]].items()
        if name not in ("arm", "weight", "seed", "steps") and value
    ]
    names = [
        name for name in known if all(math.isfinite(float(row[name])) for row in by.values())
    ]  # not all have a valley
    found: list[dict[str, Any]] = []
    for effect in EFFECTS:
        doses = sorted(
            {arm for arm, _ in by if arm.startswith(effect)},
            key=lambda arm: abs(signed_weight(arm)),
        )
        for name in names:
            curves = np.array(
                [[float(by[arm, seed][name]) for arm in ["none", *doses]] for seed in seeds]
            )
            steps = [np.polyfit(range(len(curve)), curve, 1)[0] for curve in curves]
            told = [("none", student_interval(curves[:, 0]))] if effect == "compress" else []
            told += [
                (arm, student_interval(curves[:, i + 1] - curves[:, 0]))
                for i, arm in enumerate(doses)
            ]
            told.append((f"{effect}, per step of strength", student_interval(steps)))
            found += [
                {"quantity": name, "arm": arm, "value": one.value, "low": one.low, "high": one.high}
                for arm, one in told
            ]
    write_table(found, out / "summary.csv")
    for row in found:
        apart = Interval(row["value"], row["low"], row["high"])
        print(
            f"{row['quantity']:16} {row['arm']:32} {apart.format(3)}{'  *' if apart.sign and row['arm'] != 'none' else ''}"
        )


def write_doses(runs: Sequence[dict[str, Any]], out: Path) -> None:
    """The tables of a study of several strengths: a row per run, differences by strength, and
    README.md for people."""
    kept = ("arm", "weight", "seed", "steps")
    write_table(
        [{**{name: run[name] for name in kept}, **facts_of(run)} for run in runs], out / "doses.csv"
    )
    tell_doses(out)
    (out / "README.md").write_text(tell_people(out, runs[0], len(runs)), encoding="utf-8")


COLUMNS = {
    "held_out_loss": ("loss, nats", 2),
    "middle_entropy": ("entropy, layers 4–8, nats", 2),
    "probe_middle": ("probes, layers 4–8", 1),
    "probe_last": ("probes, last layer", 1),
    "similarity_middle": ("similarity, layers 4–8", 1),
    "similarity_last": ("similarity, last layer", 1),
    "found_again_last": ("found again, last layer", 1),
    "sink_heads": ("heads with a sink, %", 0),
}


def tell_people(out: Path, run: dict[str, Any], count: int) -> str:
    """OUT/summary.csv as a table in Markdown, with what it is of."""
    with (out / "summary.csv").open(encoding="utf-8") as stream:
        by = {(row["quantity"], row["arm"]): row for row in csv.DictReader(stream)}
    shown = {name: column for name, column in COLUMNS.items() if (name, "none") in by}

    def cell(name: str, arm: str) -> str:
        value, low, high = (float(by[name, arm][key]) for key in ("value", "low", "high"))
        places = shown[name][1]
        words = [f"{each:+.{places}f}".replace("-", "−") for each in (value, low, high)]
        middle = f"**{words[0]}**" if low > 0 or high < 0 else words[0]
        return (
            middle if math.isnan(low) else f"{middle} ({words[1]} to {words[2]})"
        )  # one seed has no interval

    arms = [arm for name, arm in by if name == "held_out_loss" and arm != "none"]
    none = ", ".join(
        f"{title} {float(by[name, 'none']['value']):.{places}f}"
        for name, (title, places) in shown.items()
    )
    strict, longest = (
        float(by[name, "none"]["value"]) for name in ("sink_heads_strict", "first_longest")
    )
    lines = [
        "# Dose and response of a penalty on the entropy of layers 4 to 8", "",
        f"{count} autoregressive models, {run['steps']:,} steps of {run['batch']} × 128 tokens, trained as one and scored on "
        f"{run['device']} on {run['date']} at commit {run['commit']} (`python benchmarks/penalty_doses.py`; this table: "
        "`python benchmarks/penalty_doses.py table benchmarks/results/doses`). Every run is in runs.json and doses.csv, every "
        "difference in summary.csv.", "",
        "Differences to no penalty, paired by seed, with 95 % intervals over seeds, one comparison at a time; bold excludes zero."
        " Probes are the mean accuracy of three tasks, similarity is Spearman × 100.", "",
        "| penalty | " + " | ".join(title for title, _ in shown.values()) + " |", "|---" * (len(shown) + 1) + "|",
        *(f"| {arm} | " + " | ".join(cell(name, arm) for name in shown) + " |" for arm in arms), "",
        f"Without a penalty: {none}. Over all 128 tokens {strict:.0f} % of the heads have a sink; the first token's state is up "
        f"to {longest:.1f} times as long as the median's.",
    ]  # fmt: skip
    curve = [(int(step), value) for step, value in run.get("sink_curve", {}).items()]
    if curve:
        said = ", ".join(f"{100 * value[0]:.0f} % at {step:,}" for step, value in curve)
        lines += ["", f"Heads with a sink of the first model without a penalty, by step: {said}."]
    return "\n".join(lines) + "\n"


def write(runs: Sequence[dict[str, Any]], out: Path) -> None:
    """The tables and the verdict of some runs."""
    rows = summarize(runs)
    with (out / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )
    with (out / "layers.csv").open("w", newline="", encoding="utf-8") as file:
        plain = csv.writer(file)
        plain.writerow(["objective", "arm", "seed", "layer", "quantity", "value"])
        for run in runs:
            for name, values in run["layers"].items():
                for layer, value in enumerate(values):
                    plain.writerow(
                        [run["objective"], run["arm"], run["seed"], layer, name, f"{value:.6g}"]
                    )
    lines = verdict(rows)
    (out / "verdict.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write(json.loads((folder / "runs.json").read_text(encoding="utf-8")), folder)
