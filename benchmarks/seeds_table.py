"""What differs between trainings with other seeds: means and 95 % Student intervals over the seeds
of the two controlled sets.

    python benchmarks/seeds_table.py            # from benchmarks/results/seeds

`controlled.csv` holds every layer of the text models at four checkpoints (of seed 0, at the last
one), `vision.csv` every probe of the image models. docs/studies/objective.md and
docs/vision-comparison.md say how both were made.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from layerscope.core.statistics import student_interval

FOLDER = Path(__file__).with_name("results") / "seeds"
LAST_STEP = 1500


def over_seeds(values: pd.Series, scale: float = 1.0, digits: int = 2) -> str:
    """Each seed, then the mean with its interval."""
    numbers = [float(v) * scale for v in values]
    interval = student_interval(numbers)
    each = ", ".join(f"{v:+.{digits}f}" for v in numbers)
    return f"{each}; mean {sum(numbers) / len(numbers):+.{digits}f} ({interval.low:+.{digits}f} to {interval.high:+.{digits}f})"


def text_models(table: pd.DataFrame) -> list[str]:
    """Dips, differences between objectives, and the sink."""
    lines = []
    dips = table[(table["metric"] == "valley_depth") & (table["sink"] == "keep")]
    for step in sorted(dips["step"].unique()):
        for model in ("ar", "mlm", "mamba"):
            found = dips[(dips["step"] == step) & (dips["model"] == model)].sort_values("seed")
            layers = ", ".join(str(layer) for layer in found["layer"])
            lines.append(
                f"deepest dip, step {step}, {model} (layers {layers}): {over_seeds(found['value'])}"
            )
    entropies = table[
        (table["metric"] == "prompt_entropy") & (table["sink"] == "keep") & (table["model"] == "ar")
    ]
    curves = entropies.pivot(
        index=["seed", "layer"], columns="step", values="value"
    ).dropna()  # seeds with every step
    middle = curves.index.get_level_values("layer").isin(range(3, 10))
    span = curves[125].groupby("seed").agg(["min", "max"])
    lines.append(
        f"prompt entropy at step 125, ar, lowest layer: {over_seeds(span['min'])}; highest: {over_seeds(span['max'])}"
    )
    rise = curves[LAST_STEP] - curves[0]
    for name, part in (("layers 3 to 9", rise[middle]), ("the others", rise[~middle])):
        lines.append(
            f"prompt entropy, ar, {name}, from step 0 to {LAST_STEP}: {over_seeds(part.groupby('seed').mean())}"
        )
    last = table[(table["step"] == LAST_STEP) & (table["sink"] == "keep")]
    dip = last[last["metric"] == "valley_depth"].pivot(
        index="seed", columns="model", values="value"
    )
    lines.append(f"deepest dip, autoregressive minus masked: {over_seeds(dip['ar'] - dip['mlm'])}")
    entropy = last[last["metric"] == "prompt_entropy"]
    for layer in (1, 7):
        wide = entropy[entropy["layer"] == layer].pivot(
            index="seed", columns="model", values="value"
        )
        lines.append(
            f"prompt entropy at layer {layer}, autoregressive minus masked: {over_seeds(wide['ar'] - wide['mlm'])}"
        )
    ratio = last[last["metric"] == "sink_ratio"]
    for model, found in ratio.groupby("model"):
        highest = found.loc[found.groupby("seed")["value"].idxmax()]
        layers = ", ".join(str(layer) for layer in highest["layer"])
        lines.append(
            f"largest token over the median, {model} (layers {layers}): {over_seeds(highest['value'])}"
        )
    return lines


def image_models(table: pd.DataFrame) -> list[str]:
    """Points over the last layer at the layer that the validation images choose."""
    lines = []
    best = table.groupby(["model", "seed", "probe"])["validation"].transform("max")
    chosen = (
        table[table["validation"] == best].groupby(["model", "probe", "seed"]).last()
    )  # of several, the deepest
    for model in ("supervised", "mae", "ar"):
        for probe in ("attention", "linear", "mean", "knn"):
            found = chosen.loc[(model, probe)].sort_index()
            layers = ", ".join(str(layer) for layer in found["layer"])
            lines.append(f"{model}, {probe} (layers {layers}): {over_seeds(found['gain'], 100, 1)}")
    return lines


def main() -> None:
    """Print both."""
    for name, describe in (("controlled", text_models), ("vision", image_models)):
        print(f"\n{name}")
        print("\n".join(describe(pd.read_csv(FOLDER / f"{name}.csv"))))


if __name__ == "__main__":
    main()
