"""A model of what a profile costs: one coefficient per kind of work, fitted to measured points, and
what it predicts.

`benchmarks/scaling.py` measures the points and writes one line of JSON for each; this script needs
nothing but those lines.

    python benchmarks/cost_model.py benchmarks/results/scaling/h200.jsonl

It prints the coefficients, the errors of the fit, and the prediction for 1,000 models × 1,000,000
prompts with its bottleneck.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

Line = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One run: how many prompts of how many tokens, through how wide and deep a model, with how
    many views, and where.

    With `disk` the pooled vectors are written to a folder. Without it they stay on the GPU, or in a
    temporary folder.
    """

    prompts: int
    tokens: int
    width: int
    blocks: int
    views: int = 0
    device: str = "cuda"
    disk: bool = False

    @classmethod
    def of(cls, line: Line) -> Point:
        """The point that a line of results is about."""
        return cls(**{field.name: line[field.name] for field in fields(cls) if field.name in line})


# The kinds of work
# ------------------------------------------------------------------------------------------------------------

BATCH_TOKENS = {
    "cpu": 4096,
    "cuda": 65536,
}  # of a whole batch, as layerscope.capture.batches forms them
SHARD_PROMPTS = {
    "cpu": 32,
    "cuda": 512,
}  # at most, as layerscope.forward.choose_shard_size chooses them
SHARD_BYTES = {"cpu": 96 * 2**20, "cuda": 256 * 2**20}


def passes(p: Point) -> int:
    """Texts that are run through the model: prompts and their views."""
    return p.prompts * (1 + p.views)


def sites(p: Point) -> int:
    """Layers that are read: the input of the first block, and what every block gives."""
    return p.blocks + 1


def products(p: Point) -> float:
    """Multiplications and additions of the blocks' weights with every token."""
    return passes(p) * p.tokens * p.blocks * 24 * p.width**2


def attention(p: Point) -> float:
    """Multiplications and additions of attention, each token with each (half of them where a model
    looks back only)."""
    return passes(p) * p.tokens * p.blocks * 4 * p.tokens * p.width


def elements(p: Point) -> float:
    """Numbers that pass through a block: norms, activations, sums."""
    return passes(p) * p.tokens * p.blocks * p.width


def shard_size(p: Point) -> float:
    """Prompts that are run and stored together."""
    fits = SHARD_BYTES[p.device] // (sites(p) * (1 + p.views) * p.width * 4)
    return min(p.prompts, SHARD_PROMPTS[p.device], max(4, fits))


def launches(p: Point) -> float:
    """Batches times blocks: what starting the work of a block takes, however small it is."""
    shard = shard_size(p)
    # prompts and views are in batches of their own; a part of a batch counts as a part, so that
    # curves are smooth
    batches = sum(
        max(1.0, count * shard * p.tokens / BATCH_TOKENS[p.device])
        for count in ((1, p.views) if p.views else (1,))
    )
    return p.prompts / shard * batches * p.blocks


def eigen(p: Point) -> float:
    """Cubes of the sides of the matrices whose eigenvalues are taken: two per prompt and site, with
    and without the sink."""
    return 2 * p.prompts * sites(p) * min(p.tokens, p.width) ** 3


def gram(p: Point) -> float:
    """Multiplications and additions of the token Gram matrices of the prompts."""
    return 2 * p.prompts * sites(p) * p.tokens * p.width * min(p.tokens, p.width)


def states(p: Point) -> float:
    """Numbers in the states that are read, centered, scaled, pooled."""
    return passes(p) * p.tokens * sites(p) * p.width


def cells(p: Point) -> float:
    """Texts times sites: what is done once for each of them."""
    return passes(p) * sites(p)


def tall(p: Point) -> bool:
    """Whether there are more prompts than dimensions: spectra over prompts are then those of D×D
    matrices."""
    return p.prompts > p.width


def gram_spectra(p: Point) -> float:
    """Cubes of the sides of the N×N matrices over prompts, one per site (and per fold, which the
    coefficient holds)."""
    return 0 if tall(p) else sites(p) * p.prompts**3


def scatter_spectra(p: Point) -> float:
    """The same for D×D matrices."""
    return sites(p) * p.width**3 if tall(p) else 0


def scatter_products(p: Point) -> float:
    """Multiplications and additions that make the D×D matrices."""
    return 2 * sites(p) * p.prompts * p.width**2 if tall(p) else 0


def scatter_parts(p: Point) -> float:
    """Shards times sites: every shard adds to the D×D matrix of every fold."""
    return sites(p) * p.prompts / shard_size(p) if tall(p) else 0


def view_spectra(p: Point) -> float:
    """Cubes of the sides of the matrices of metrics that compare views."""
    return sites(p) * (min(p.prompts, p.width) ** 3 + p.width**3) if p.views else 0


def text_tokens(p: Point) -> float:
    """Tokens that the host makes from texts."""
    return p.prompts * p.tokens


def view_tokens(p: Point) -> float:
    """Tokens of the views that the host makes."""
    return p.prompts * p.views * p.tokens


def vector_bytes(p: Point) -> float:
    """Bytes of the pooled vectors, in float32."""
    return cells(p) * p.width * 4


PASSES = {"products": products, "attention": attention, "elements": elements, "launches": launches}
KINDS = {
    **PASSES,
    "eigen": eigen,
    "gram": gram,
    "states": states,
    "cells": cells,
    "gram_spectra": gram_spectra,
    "scatter_spectra": scatter_spectra,
    "scatter_products": scatter_products,
    "scatter_parts": scatter_parts,
    "tall": tall,
    "view_spectra": view_spectra,
    "text_tokens": text_tokens,
    "view_tokens": view_tokens,
    "disk": lambda p: vector_bytes(p) if p.disk else 0,
    "sites": sites,
    "run": lambda p: 1,
}
# What one waits for, by the kinds of work that are its own
CAUSES = {
    "the model's forward passes": tuple(PASSES),
    "token matrices and their eigenvalues": ("eigen", "gram"),
    "reading the states": ("states",),
    "spectra over prompts": ("gram_spectra", "scatter_spectra", "scatter_products", "view_spectra"),
    "tokenizing texts": ("text_tokens",),
    "making and tokenizing views": ("view_tokens",),
    "pooled vectors to the disk and back": ("disk",),
    "many small steps": ("scatter_parts", "tall", "cells", "sites", "run"),
}
# Of these, what a GPU waits for
HOST = (
    "tokenizing texts",
    "making and tokenizing views",
    "pooled vectors to the disk and back",
    "many small steps",
)


def amounts(p: Point, bare: bool = False) -> list[float]:
    """How much of each kind of work a profile holds, or the bare forward passes alone."""
    return [0.0 if bare and name not in PASSES else float(kind(p)) for name, kind in KINDS.items()]


# The fit
# ----------------------------------------------------------------------------------------------------------------------


def fit(
    points: Sequence[Point], profiles: Sequence[float], bare: Sequence[float]
) -> dict[str, float]:
    """Non-negative coefficients (seconds per unit) with the smallest sum of squared relative
    errors, of profiles and passes.

    A profile of NaN seconds does not count.
    """
    from scipy.optimize import nnls

    seconds = np.array([*profiles, *bare])
    table = np.array([amounts(p) for p in points] + [amounts(p, bare=True) for p in points])
    table = (table / seconds[:, None])[np.isfinite(seconds)]
    scale = np.where(table.max(axis=0) > 0, table.max(axis=0), 1.0)
    solution, _ = nnls(table / scale, np.ones(len(table)))
    return dict(zip(KINDS, (solution / scale).tolist(), strict=True))


def predict(coefficients: dict[str, float], p: Point, bare: bool = False) -> dict[str, float]:
    """Seconds of each kind of work."""
    return {
        name: coefficients[name] * amount
        for name, amount in zip(KINDS, amounts(p, bare), strict=True)
    }


@dataclass(frozen=True)
class Fit:
    """A fit to the measured points of one device, with its relative errors: point → (of the
    profile, of the bare passes)."""

    coefficients: dict[str, float]
    errors: dict[Point, tuple[float, float]]

    def seconds(self, p: Point, bare: bool = False) -> float:
        """What a profile takes, or its bare passes."""
        return sum(predict(self.coefficients, p, bare).values())

    def summary(self, which: int = 0) -> tuple[float, float, Point]:
        """The median and the largest relative error of profiles (0) or bare passes (1), and where
        it is largest."""
        found = {
            p: abs(pair[which]) for p, pair in self.errors.items() if math.isfinite(pair[which])
        }
        worst = max(found, key=lambda p: found[p])
        return statistics.median(found.values()), found[worst], worst


def fit_lines(lines: Iterable[Line], device: str) -> Fit:
    """The fit to all measured points of one device; of a point that was measured again, to the
    last."""
    rows = {
        Point.of(line): (profile_seconds(line), line["bare_s"])
        for line in lines
        if line.get("device") == device
    }
    return fit_rows(rows)


def fit_rows(rows: dict[Point, tuple[float, float]]) -> Fit:
    """The fit to points with their seconds, of the profile and of the bare passes."""
    coefficients = fit(list(rows), [a for a, _ in rows.values()], [b for _, b in rows.values()])
    errors = {
        p: (
            sum(predict(coefficients, p).values()) / a - 1,
            sum(predict(coefficients, p, bare=True).values()) / b - 1,
        )
        for p, (a, b) in rows.items()
    }
    return Fit(coefficients, errors)


def profile_seconds(line: Line) -> float:
    """Seconds of the profile; NaN where the only run was the first of its shape, which also
    compiles kernels."""
    return float(line["profile_s"]) if line.get("warm", True) else math.nan


def left_out_errors(lines: Iterable[Line], device: str) -> dict[Point, float]:
    """The relative error of the profile at each point, as the fit to all other points predicts
    it."""
    rows = {
        Point.of(line): (profile_seconds(line), line["bare_s"])
        for line in lines
        if line.get("device") == device
    }
    out = {}
    for p, (seconds, _) in rows.items():
        if math.isfinite(seconds):
            out[p] = (
                fit_rows({other: row for other, row in rows.items() if other != p}).seconds(p)
                / seconds
                - 1
            )
    return out


def fit_workers(lines: Iterable[Line]) -> tuple[float, float, float]:
    """Seconds of what one process does alone, seconds of what workers share (the time is a + b /
    workers), largest error."""
    from scipy.optimize import nnls

    counts, seconds = np.array(
        [(line["workers"], line["seconds"]) for line in lines if line.get("workers")], float
    ).T
    table = np.stack([np.ones(len(counts)), 1 / counts], axis=1)
    (alone, shared), _ = nnls(table / seconds[:, None], np.ones(len(counts)))
    return float(alone), float(shared), float(np.abs((alone + shared / counts) / seconds - 1).max())


# Predictions
# ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """What many profiles would take on one device, and what they would wait for."""

    point: Point
    models: int
    bare_s: float  # of one model
    fitted_s: float  # of one profile
    write_s: float | None  # that the disk needs for its vectors; None where no rate was measured
    causes: dict[str, float]  # share of the fitted time

    @property
    def profile_s(self) -> float:
        """Seconds of one profile. Vectors are written while the next batches are computed: the
        slower of the two counts."""
        return max(self.fitted_s, self.write_s or 0.0)

    @property
    def bottleneck(self) -> str:
        """What one waits for most."""
        if self.write_s is not None and self.write_s > self.fitted_s:
            return "the disk that pooled vectors are written to"
        largest = sorted(self.causes, key=lambda name: -self.causes[name])
        host = [name for name in largest if name in HOST]
        others = [self.causes[name] for name in largest if name not in HOST]
        if self.point.device == "cuda" and sum(self.causes[name] for name in host) > max(others):
            return "the host: " + ", ".join(name for name in host if self.causes[name] >= 0.05)
        return largest[0]

    @property
    def devices_per_disk(self) -> float:
        """How many such devices one disk of the measured rate can serve."""
        return self.fitted_s / self.write_s if self.write_s else math.inf


def predict_sweep(
    found: Fit, point: Point, models: int = 1000, write_gb_s: float | None = None
) -> Prediction:
    """What profiles of many models of one shape take; `write_gb_s` is the rate at which vectors are
    written."""
    parts = predict(found.coefficients, point)
    total = sum(parts.values())
    causes = {cause: sum(parts[name] for name in kinds) / total for cause, kinds in CAUSES.items()}
    write = vector_bytes(point) / 1e9 / write_gb_s if write_gb_s else None
    return Prediction(point, models, found.seconds(point, bare=True), total, write, causes)


def large(device: str) -> Point:
    """A model of Pythia-410M's shape on a million prompts of 128 tokens; so many vectors do not
    stay on a GPU."""
    return Point(
        prompts=1_000_000, tokens=128, width=1024, blocks=24, device=device, disk=device == "cuda"
    )


# Results
# ----------------------------------------------------------------------------------------------------------------------


def read_lines(files: Iterable[Path]) -> list[Line]:
    """All lines of some files of results."""
    return [
        json.loads(line)
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]


def measured(lines: Iterable[Line]) -> list[Line]:
    """The lines that are measured points."""
    return [line for line in lines if "profile_s" in line]


def write_rate(lines: Iterable[Line], device: str) -> float | None:
    """GB/s at which vectors were written, where that was measured."""
    return next(
        (
            line["write_gb_s"]
            for line in lines
            if line.get("device") == device and "write_gb_s" in line
        ),
        None,
    )


def _shown(p: Point) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(p).items() if value)


def report(lines: list[Line], device: str) -> None:
    """Print the fit, its errors and the prediction."""
    found = fit_lines(measured(lines), device)
    print(f"{device}: {len(found.errors)} points")
    print(
        "  seconds per unit: "
        + ", ".join(f"{name} {value:.2e}" for name, value in found.coefficients.items() if value)
    )
    for which, name in enumerate(("profile", "bare passes")):
        middle, worst, where = found.summary(which)
        print(
            f"  relative error, {name}: median {middle:.1%}, largest {worst:.1%} ({_shown(where)})"
        )
    others = [abs(error) for error in left_out_errors(measured(lines), device).values()]
    print(
        f"  each profile predicted from the other points: median {statistics.median(others):.1%}, largest {max(others):.1%}"
    )
    sweep = predict_sweep(found, large(device), write_gb_s=write_rate(lines, device))
    print(f"  predicted for one model ({_shown(sweep.point)}):")
    print(f"    bare passes {sweep.bare_s / 60:,.1f} min, profile {sweep.profile_s / 60:,.1f} min")
    shares = sorted(sweep.causes.items(), key=lambda item: -item[1])
    print("    " + ", ".join(f"{cause} {share:.0%}" for cause, share in shares if share >= 0.005))
    if sweep.write_s is not None:
        gigabytes = vector_bytes(sweep.point) / 1e9
        print(f"    {gigabytes:,.0f} GB of vectors, {sweep.write_s / 60:,.1f} min to write")
        print(f"    one disk serves {sweep.devices_per_disk:,.1f} such devices")
    hours = sweep.models * sweep.profile_s / 3600
    print(
        f"  {sweep.models:,} models: {hours:,.0f} hours ({hours / 24 / 365:,.2f} years); bottleneck: {sweep.bottleneck}"
    )


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="results of benchmarks/scaling.py")
    lines = read_lines(parser.parse_args().files)
    for device in sorted({line["device"] for line in measured(lines)}):
        report(lines, device)
    if any(line.get("workers") for line in lines):
        alone, shared, error = fit_workers(lines)
        print(f"workers: {alone:.2f} s + {shared:.2f} s / workers, largest error {error:.1%}")


if __name__ == "__main__":
    main()
