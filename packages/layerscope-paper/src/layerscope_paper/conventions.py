"""Compare the paper's formulas with its released code: every metric, three presets, all layers.

    python -m layerscope_paper.conventions [--out FILE]

FILE is `packages/layerscope-paper/results/metric_conventions.csv` unless another is given.

Spearman's ρ over the layers between the formula (`paper`: rows as they are; `default`: rows
centered and scaled) and the released code (`released`), both with the released code's final norm.
−1: the two run in opposite directions, and a verdict on a published value says the opposite of one
on the formula's.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pandas as pd

import layerscope
from layerscope.core.statistics import spearman
from layerscope.data import load_corpus
from layerscope.profiling.job import DEFAULT_DATA
from layerscope_paper.presets import PRESETS

METRICS = ["prompt_entropy", "dataset_entropy", "curvature", "infonce", "lidar", "dime"]
MODELS = {
    "controlled-ar": 140,
    "controlled-mlm": 140,
    "minilm-l6": 40,
}  # N > D in the first two: DiME's feature side
LENGTH = 32
VIEWS = 4


def curves(model: str, texts: list[str], preset: str) -> pd.Series:
    """Return a value per metric and layer under one preset."""
    settings = {**PRESETS[preset], "final_norm": "hf", "max_length": LENGTH, "views": VIEWS}
    run = layerscope.profile(model, texts, metrics=METRICS, progress=False, **settings)
    rows = run.table[(run.table["normalization"] == "raw") & (run.table["sink"] == "keep")]
    return rows.set_index(["metric", "layer"])["value"].rename(preset)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--out", type=Path, default=Path("packages/layerscope-paper/results/metric_conventions.csv")
    )
    out = parser.parse_args().out
    presets = ["paper", "default", "released"]
    tables = []
    for model, count in MODELS.items():
        texts = list(load_corpus(DEFAULT_DATA, limit=count).texts)
        by_preset = pd.concat([curves(model, texts, preset) for preset in presets], axis=1)
        tables.append(by_preset.reset_index().assign(model=model, prompts=count))
        print(model, flush=True)
    table = pd.concat(tables, ignore_index=True)[["model", "prompts", "metric", "layer", *presets]]
    table.round(5).to_csv(out, index=False)
    report(table)


def report(table: pd.DataFrame) -> None:
    """Print ρ by metric and model, and the difference of the two curvatures."""
    for name in ("paper", "default"):
        rho = {
            key: float(spearman(rows[name], rows["released"]))
            for key, rows in table.groupby(["metric", "model"])
        }
        wide = pd.Series(rho).unstack().round(2).to_string()
        print(f"\nSpearman over layers, {name} against released\n{wide}")
    curvature = table[table["metric"] == "curvature"]
    difference = (curvature["paper"] - (math.pi - curvature["released"])).abs().max()
    print(f"\ncurvature: |signed − (π − absolute)| ≤ {difference:.3f} radians")


if __name__ == "__main__":
    main()
