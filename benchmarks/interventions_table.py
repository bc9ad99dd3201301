"""What benchmarks/train_interventions.py found: means and paired differences over seeds, as tables and in words.

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
CLASSIFICATION = ("ReviewSentiment", "TrecQuestions", "SmsSpam", "SentimentSnippets")
# Means are over these. ReviewSentiment is shown alone: in the stored results its training side is mostly negative reviews of
# one source and its test side mostly positive ones of another.
PROBES = CLASSIFICATION[1:]
SCORED_PAIRS = "LeeSimilarity"


def facts_of(run: dict[str, Any]) -> dict[str, float]:
    """The numbers that arms are compared by."""
    layers = run["layers"]
    last = len(layers["entropy_keep"]) - 1
    middle = middle_layers(last)
    tasks = np.array([layers[name] for name in PROBES])  # (tasks, layers)
    probes = 100 * tasks.mean(0)
    valley = run["valleys"].get("entropy_keep", {"share": math.nan, "clear": False, "layer": math.nan})
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
    return {**out, **{f"probe_best_{name}": 100 * float(np.max(layers[name])) for name in CLASSIFICATION}}


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per objective, arm and quantity: the mean, and the paired difference to `none`, with intervals over seeds."""
    by = {(run["objective"], run["arm"], run["seed"]): facts_of(run) for run in runs}
    rows = []
    for objective in OBJECTIVES:
        for arm in ARMS:
            seeds = sorted(seed for o, a, seed in by if (o, a) == (objective, arm))
            if not seeds:
                continue
            paired = [seed for seed in seeds if (objective, "none", seed) in by]
            for name in by[objective, arm, seeds[0]]:
                own = student_interval([by[objective, arm, seed][name] for seed in seeds])
                apart = Interval(math.nan)
                if arm != "none" and paired:
                    differences = [by[objective, arm, seed][name] - by[objective, "none", seed][name] for seed in paired]
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
        for arm in ARMS:
            if arm == "none" or (objective, arm, "held_out_loss") not in of:
                continue
            said.append(f"{objective}, {arm} against none (difference, 95 % interval over seeds):")
            for name in (
                "middle_entropy", "held_out_loss", "valley_share", "probe_middle", "probe_best", "probe_last",
                "similarity_best", "found_again_best",
            ):  # fmt: skip
                row = of[objective, arm, name]
                apart = Interval(row["difference"], row["difference_low"], row["difference_high"], row["seeds"])
                word = {1: "higher", -1: "lower", 0: "not clearly different"}[apart.sign]
                said.append(f"  {name:20} {apart.format(3)}: {word}")
    return said


def write(runs: Sequence[dict[str, Any]], out: Path) -> None:
    """The tables and the verdict of some runs."""
    rows = summarize(runs)
    with (out / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    with (out / "layers.csv").open("w", newline="", encoding="utf-8") as file:
        plain = csv.writer(file)
        plain.writerow(["objective", "arm", "seed", "layer", "quantity", "value"])
        for run in runs:
            for name, values in run["layers"].items():
                for layer, value in enumerate(values):
                    plain.writerow([run["objective"], run["arm"], run["seed"], layer, name, f"{value:.6g}"])
    lines = verdict(rows)
    (out / "verdict.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write(json.loads((folder / "runs.json").read_text(encoding="utf-8")), folder)
