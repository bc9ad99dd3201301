"""`layerscope study factorial` with quick measures, on a machine without mteb: fifteen tasks and many models in minutes on a GPU.

    python benchmarks/factorial.py score MODEL... --data ../shared/data/mteb --out benchmarks/results/factorial.csv [--small]
    python benchmarks/factorial.py table benchmarks/results/factorial.csv [--figure figure.png]     # what the study says of it

Measures are the quick ones of `improve_tasks.py`. Nothing was tuned on any task. In the results that are kept, plain text was
read up to 96 tokens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parent))
import heads
import improve_tasks

from layerscope.core.heads import unit
from layerscope.studies.factorial import READOUTS, STUDY, apply_readout, read_vectors, summarize

TEMPLATE, TEACHER, LENGTH = "one-word", 0.9, 128
SMALL_ITEMS, FIT = {"PAIRS": 150, "TEXTS": 250, "TEST": 150, "POOL": 17}, 250
TYPES = {"STS": "similarity", "Clustering": "clustering", "Classification": "classification"}


def task_type(name: str) -> str:
    """What kind of task it is, by its name."""
    return next((kind for part, kind in TYPES.items() if part in name), "pairs and ranking")


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
        pool, cut = pool[: FIT if small else 1000], len(task.texts)
        for name in left:
            start = time.perf_counter()
            model = models.setdefault(name, None) or load(name)
            models[name] = model
            vectors = read_vectors(model, task.texts + pool, TEMPLATE, LENGTH, 256 if heads.DEVICE == "cuda" else None)
            layers, table = len(vectors["mean"]), []
            for readout in READOUTS:
                for layer, own in enumerate(apply_readout(readout, vectors, cut, TEACHER)):
                    value = task.score(torch.tensor(unit(own)[None], dtype=torch.float32, device=heads.DEVICE))
                    table.append(
                        {"model": name, "task": task.name, "type": task_type(task.name), "readout": readout, "layer": layer,
                         "depth": round(layer / (layers - 1), 4), "score": round(float(value[0]), 4), "texts": cut,
                         "fit": len(pool), "small": small, "commit": commit}
                    )  # fmt: skip
            done = pd.concat([done, pd.DataFrame(table)], ignore_index=True)
            done.to_csv(out, index=False)
            print(f"{name} {task.name}: {cut} + {len(pool)} texts, {time.perf_counter() - start:.0f} s", flush=True)


def table(file: Path, figure: Path | None = None) -> None:
    """What the study says of these scores."""
    rows = pd.read_csv(file)
    if rows["small"].nunique() > 1:
        raise SystemExit(f"{file} mixes rows of --small with full ones: their scores cannot be compared.")
    scores = rows.rename(columns={"readout": "reading", "score": "value"}).assign(kind="score")
    whole, verdict = summarize(scores, 0)
    print("\n".join(verdict))
    mixed = whole[whole["kind"] == "mixed"]
    print(mixed[["reading", "value", "ci_low", "ci_high"]].round(2).to_string(index=False))
    if figure is not None:
        STUDY.draw(whole, {}).savefig(figure, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["score", "table"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mteb"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/factorial.csv"))
    parser.add_argument("--small", action="store_true", help="five tasks of fewer items: for a CPU")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.step == "score":
        score(given.names, given.data, given.out, given.small)
    else:
        table(Path(given.names[0]), given.figure)


if __name__ == "__main__":
    main()
