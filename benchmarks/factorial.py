"""Is "middle layers win" a fact about layers or about how they are read? Readout × layer × task, several models.

Every layer of every model is read in seven ways: the mean of the tokens (today's default), the same centered, the mean that
weighs later tokens more, the last token, the echo's second copy, a prompt's last token (centered), and a head: a linear map of
the mean, fitted without labels to agree with the prompt at 90 % of the depth. Means and heads are fitted on texts of the task
that are not scored.

    python benchmarks/factorial.py score MODEL... --data ../shared/data/mteb --out benchmarks/results/factorial.csv [--small]
    python benchmarks/factorial.py table benchmarks/results/factorial.csv     # shares of the gain, and a mixed model

Measures are the quick ones of `improve_tasks.py`. Nothing was tuned on any task. `table` chooses layers and readouts on the other
tasks only: a task's gain is never one that it helped to choose.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parent))
import heads
import improve_tasks

from layerscope.core.heads import Ridge, make_target, unit
from layerscope.core.statistics import percentile_interval

DEVICE = heads.DEVICE
PASSES = {"plain": ("mean/applied", "wmean/applied", "last/applied"), "echo": ("mean/applied",), "one-word": ("last/applied",)}
READOUTS = ("mean", "centered", "weighted", "last", "echo", "prompt", "head")
DEFAULT, TEACHER = "mean", 0.9
SMALL_ITEMS, FIT = {"PAIRS": 150, "TEXTS": 250, "TEST": 150, "POOL": 17}, 250
TYPES = {"STS": "similarity", "Clustering": "clustering", "Classification": "classification"}


def task_type(name: str) -> str:
    """What kind of task it is, by its name."""
    return next((kind for part, kind in TYPES.items() if part in name), "pairs and ranking")


def vectors_of(model: Any, texts: list[str]) -> dict[str, np.ndarray]:
    """Vectors (layers, texts, D) by readout, but for the head and the centered ones."""
    from layerscope.capture import expand_sites
    from layerscope.core.templates import get_template
    from layerscope.evaluation.encode import TextEncoder

    sites, found = expand_sites(None, model.anatomy), {}
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    for template, kinds in PASSES.items():
        length, batch = 96 if template == "plain" else 128, 256 if DEVICE == "cuda" else None
        encoder = TextEncoder(model, get_template(template), sites, kinds, length, batch)
        rows = encoder.run(encoder.read([texts[i] for i in order]), lambda n: None)[0]
        for kind in kinds:
            name = {"plain": {"m": "mean", "w": "weighted", "l": "last"}[kind[0]], "echo": "echo", "one-word": "prompt"}[template]
            found[name] = np.empty_like(rows[kind])
            found[name][:, order] = rows[kind]
    return found


def readings(readout: str, scored: dict[str, np.ndarray], fit: dict[str, np.ndarray]) -> np.ndarray:
    """Vectors (layers, texts, D) of the texts that are scored."""
    if readout in ("centered", "prompt"):
        kind = "mean" if readout == "centered" else "prompt"
        return scored[kind] - fit[kind].mean(axis=1, keepdims=True)
    if readout != "head":
        return scored[readout]
    target = make_target(fit["prompt"][round(TEACHER * (len(scored["mean"]) - 1))])
    return np.stack([Ridge(own, target).head()(given) for own, given in zip(fit["mean"], scored["mean"], strict=True)])


def score(names: list[str], data: Path, out: Path, small: bool) -> None:
    """A row per model, task, readout and layer; what is in `out` already is not done again."""
    from layerscope.models import load

    torch.set_float32_matmul_precision("high")
    for name, count in SMALL_ITEMS.items() if small else ():
        setattr(improve_tasks, name, count)
    done = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=["model", "task", "small", "fit"])
    if "small" not in done or (done["small"] != small).any():
        raise SystemExit(f"{out} has rows of {'the full size' if small else '--small'}, or does not say: give another --out.")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    models: dict[str, Any] = {}
    for place in heads.places(data, False):
        if small and (place.name not in heads.SMALL or "Banking" in place.name):
            continue
        left = [name for name in names if not ((done["model"] == name) & (done["task"] == place.name)).any()]
        if not left:
            continue
        task, pool = heads.split(place)  # takes longer than reading the texts
        pool = pool[: FIT if small else 1000]
        for name in left:
            start = time.perf_counter()
            model = models.setdefault(name, None) or load(name)
            models[name] = model
            rows = vectors_of(model, task.texts + pool)
            scored = {k: v[:, : len(task.texts)] for k, v in rows.items()}
            fit = {k: v[:, len(task.texts) :] for k, v in rows.items()}
            layers = len(scored["mean"])
            table = []
            for readout in READOUTS:
                each = unit(readings(readout, scored, fit)).astype(np.float32)
                some = np.array_split(each, max(1, layers // 8))
                values = torch.cat([task.score(torch.tensor(part, device=DEVICE)).cpu() for part in some])
                table += [
                    {"model": name, "task": task.name, "type": task_type(task.name), "readout": readout, "layer": k,
                     "depth": round(k / (layers - 1), 4), "score": round(float(v), 4), "texts": len(task.texts),
                     "fit": len(pool), "small": small, "commit": commit}
                    for k, v in enumerate(values)
                ]  # fmt: skip
            done = pd.concat([done, pd.DataFrame(table)], ignore_index=True)
            done.to_csv(out, index=False)
            print(f"{name} {task.name}: {len(task.texts)} + {len(pool)} texts, {time.perf_counter() - start:.0f} s", flush=True)


# --- what the table says ---


def parts(cube: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Per task of one model (tasks, readouts, layers): what readout, layer and both together gain over today, and the whole gain.

    Readout and layer are the pair that is best on the other tasks. The readout's part is its gain at the last layer, the layer's
    its gain under today's readout, what is left over belongs to their interaction.
    """
    count = np.ones(len(cube)) if weight is None else weight
    rows = []
    for t in range(len(cube)):
        others = count.copy()
        others[t] = 0
        best = np.unravel_index(int(np.tensordot(others, cube, 1).argmax()), cube.shape[1:])
        today, whole = cube[t, 0, -1], cube[t][best]
        by_readout, by_layer = cube[t, best[0], -1] - today, cube[t, 0, best[1]] - today
        rows.append((by_readout, by_layer, whole - today - by_readout - by_layer, whole - today))
    return np.array(rows)


def middle_gain(cube: np.ndarray, readout: int) -> np.ndarray:
    """Per task: the best layer of the other tasks before the last, minus the last layer, under one readout."""
    curves = cube[:, readout]
    others = curves.sum(0) - curves
    inner = others[:, 1:-1].argmax(1) + 1
    return curves[np.arange(len(curves)), inner] - curves[:, -1]


def cubes(rows: pd.DataFrame) -> Iterator[tuple[str, list[str], np.ndarray]]:
    """Per model its tasks, and the scores (tasks, readouts, layers); today's readout is the first."""
    for name, mine in rows.groupby("model", sort=False):
        wide = mine.pivot_table("score", "task", ["readout", "layer"])
        layers = mine["layer"].nunique()
        yield str(name), list(wide.index), wide[list(READOUTS)].to_numpy(float).reshape(len(wide), len(READOUTS), layers)


def table(file: Path) -> None:
    """Shares of the gain with intervals over tasks, the best inner layer under every readout, and the mixed model."""
    rows = pd.read_csv(file)
    if "small" in rows and rows["small"].nunique() > 1:
        raise SystemExit(f"{file} mixes rows of --small with full ones: their scores cannot be compared.")
    rng, drawn, said = np.random.default_rng(0), [], []
    print("points over today (mean, last layer); readout + layer + both = all; 95 %: tasks drawn anew\n")
    for name, tasks, cube in cubes(rows):
        found = parts(cube)
        weights = rng.multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), 300).astype(float)
        again = np.array([np.average(parts(cube, weight), axis=0, weights=weight) for weight in weights])
        drawn.append(again)
        said.append(found.mean(0))
        told = [percentile_interval(float(found[:, i].mean()), again[:, i]) for i in range(4)]
        print(f"{name:18} " + "  ".join(f"{n} {v}" for n, v in zip(("readout", "layer", "both", "all"), told, strict=True)))
    both = np.mean(said, axis=0)
    pick = rng.integers(0, len(drawn), (300, len(drawn)))  # models are drawn anew as well
    again = np.array([np.mean([drawn[m][rng.integers(0, 300)] for m in each], axis=0) for each in pick])
    for i, what in enumerate(("readout", "layer", "both together")):
        share = percentile_interval(float(both[i] / both[3]), again[:, i] / again[:, 3])
        print(f"share of the gain, {what}: {share.scaled(100).format(0)} %")
    print("\nan inner layer, chosen on the other tasks, minus the last layer, points; 95 % over tasks and models")
    for r, readout in enumerate(READOUTS):
        each = [middle_gain(cube, r) for _, _, cube in cubes(rows)]
        again = np.array([
            np.mean([rng.choice(each[m], len(each[m])).mean() for m in rng.integers(0, len(each), len(each))]) for _ in range(500)
        ])  # fmt: skip
        by_model = ", ".join(f"{name} {gain.mean():+.1f}" for (name, _, _), gain in zip(cubes(rows), each, strict=True))
        print(f"{readout:10} {percentile_interval(float(np.mean([gain.mean() for gain in each])), again)}   {by_model}")
    mixed(rows)


def mixed(rows: pd.DataFrame) -> None:
    """Score by readout × depth, with model, task and model × task as random effects."""
    try:
        import statsmodels.formula.api as smf
    except ImportError:
        print("\nfor the mixed model: pip install statsmodels")
        return
    bins = pd.cut(rows["depth"], [-0.01, 0.001, 0.34, 0.67, 0.999, 1.0], labels=["embeddings", "early", "middle", "late", "last"])
    cells = rows.assign(depth=bins.astype(str)).groupby(["model", "task", "readout", "depth"], as_index=False)["score"].mean()
    cells["all"], cells["pair"] = 1, cells["model"] + cells["task"]
    formula = "score ~ C(readout, Treatment('mean')) * C(depth, Treatment('last'))"
    random = {name: f"0 + C({name})" for name in ("model", "task", "pair")}
    fit = smf.mixedlm(formula, cells, groups="all", vc_formula=random, re_formula="0").fit(reml=True)
    names = [n for n in fit.model.exog_names if "middle" in n or n.count(":") == 0]
    low, high = fit.conf_int().loc[names, 0], fit.conf_int().loc[names, 1]
    print("\nmixed model: score ~ readout × depth, random: model, task, model × task; points over the mean at the last layer")
    for n in names:
        short = n.replace("C(readout, Treatment('mean'))", "readout").replace("C(depth, Treatment('last'))", "depth")
        print(f"  {short:46} {fit.params[n]:+7.2f}  ({low[n]:+.2f} to {high[n]:+.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["score", "table"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mteb"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/factorial.csv"))
    parser.add_argument("--small", action="store_true", help="five tasks of fewer items: for a CPU")
    given = parser.parse_args()
    if given.step == "score":
        score(given.names, given.data, given.out, given.small)
    else:
        table(Path(given.names[0]))


if __name__ == "__main__":
    main()
