"""`layerscope-paper study factorial` on a machine without mteb: fifteen tasks and many models in minutes
on a GPU.

    python benchmarks/factorial.py describe build/factorial.npz --data ../shared/data/mteb   # where mteb is
    python benchmarks/factorial.py score MODEL... --problems build/factorial.npz --out
    benchmarks/results/factorial-mteb.csv
    python benchmarks/factorial.py score MODEL... --data ../shared/data/mteb --out
    benchmarks/results/factorial.csv [--small]
    python benchmarks/factorial.py table benchmarks/results/factorial.csv [--figure figure.png]     # what the study says of it

With `--problems` the measures are mteb's own, as `evaluate --scoring device` computes them, on at
most `ITEMS` items per task; else the quick ones of `improve_tasks.py`. Nothing was tuned on any
task. In the quick results that are kept, plain text was read up to 96 tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parent))
import heads
import improve_tasks
import rows

from layerscope.core.heads import unit
from layerscope_paper.studies.factorial import (
    READOUTS,
    STUDY,
    apply_readout,
    read_vectors,
    summarize,
)

TEMPLATE, TEACHER, LENGTH = "one-word", 0.9, 128
SMALL_ITEMS, FIT = {"PAIRS": 150, "TEXTS": 250, "TEST": 150, "POOL": 17}, 250
ITEMS = 1000  # texts, pairs or queries that are scored per task
TYPES = {"STS": "similarity", "Clustering": "clustering", "Classification": "classification"}


def task_type(name: str) -> str:
    """What kind of task it is, by its name."""
    return next((kind for part, kind in TYPES.items() if part in name), "pairs and ranking")


def describe(out: Path, data: Path, items: int = ITEMS) -> None:
    """What mteb would score, as numbers: texts, texts to fit on, and the problems with mteb's own
    draws."""
    from scoring_shapes import pack

    from layerscope.errors import DataError
    from layerscope.evaluation.problems import parts_of
    from layerscope.evaluation.scoring import quiet_mteb
    from layerscope.evaluation.tasks import reseed, resolve_tasks
    from layerscope_paper.studies.factorial import read_task

    quiet_mteb()
    arrays: dict[str, Any] = {}
    plain: dict[str, dict[str, Any]] = {}
    told: dict[str, Any] = {}
    for spec in resolve_tasks(
        sorted(path.name for path in data.iterdir()), data_dir=data, sample=items, offline=True
    ):
        sample = items
        while True:  # of a small task fewer are scored, so that some are left to fit on
            try:
                name, task, texts, fit = read_task(replace(spec, sample=sample), 1000, 0)
                break
            except DataError:
                if (sample := sample // 2) < 100:
                    raise
        at = {text: i for i, text in enumerate(texts)}
        reseed(task)
        parts = parts_of(task, lambda some, at=at: np.array([at[text] for text in some]))  # type: ignore[misc]
        for i, part in enumerate(parts):
            pack(f"{name}|{i}", part.problem, arrays, plain)
        told[name] = {"type": task.metadata.type, "texts": texts, "fit": fit}
        print(f"{name}: {len(texts)} + {len(fit)} texts, {len(parts)} parts", flush=True)
    whole = {"problems": plain, "tasks": told, "items": items}
    arrays["plain"] = np.frombuffer(json.dumps(whole, ensure_ascii=False).encode(), dtype=np.uint8)
    np.savez_compressed(out, **arrays)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MB")


def score_described(
    names: list[str], problems: Path, out: Path, only: list[str] | None = None
) -> None:
    """A row per model, task, readout and layer by mteb's measures; what is in `out` already is not
    done again."""
    from scoring_shapes import on_device, unpack

    from layerscope.models import load

    torch.set_float32_matmul_precision("high")
    with np.load(problems) as stored:
        whole = json.loads(stored["plain"].tobytes().decode())
        found = unpack(stored, whole["problems"])
    device = torch.device(heads.DEVICE)
    done = pd.read_csv(out) if out.exists() else pd.DataFrame(columns=["model", "task"])
    for name in names:
        model = load(name)
        for task, parts in found.items():
            if ((done["model"] == name) & (done["task"] == task)).any() or task not in (
                only or found
            ):
                continue
            start, told = time.perf_counter(), whole["tasks"][task]
            texts, fit = told["texts"], told["fit"]
            vectors = read_vectors(
                model, texts + fit, TEMPLATE, LENGTH, 256 if device.type == "cuda" else None
            )
            read, table = time.perf_counter() - start, []
            for readout in READOUTS:
                states = apply_readout(readout, vectors, len(texts), TEACHER).astype(np.float32)
                flat = np.ptp(states, axis=1).max(1) <= 1e-6 * np.maximum(
                    1e-30, np.abs(states).max((1, 2))
                )
                values = np.full(len(states), np.nan)
                values[~flat] = np.mean(
                    [on_device(states[~flat], part, device, 2**33) for part in parts], axis=0
                )
                for layer, value in enumerate(values):
                    table.append(
                        {"model": name, "task": task, "type": told["type"], "readout": readout, "layer": layer,
                         "depth": round(layer / (len(states) - 1), 4), "score": round(100 * float(value), 4), "texts": len(texts),
                         "fit": len(fit), "small": False, "measures": "mteb", "commit": rows.commit()}
                    )  # fmt: skip
            done = pd.concat([done, pd.DataFrame(table)], ignore_index=True)
            done.to_csv(out, index=False)
            taken = time.perf_counter() - start
            print(f"{name} {task}: {len(texts)} + {len(fit)} texts, read {read:.0f} s, {taken:.0f} s in all",
                  flush=True)  # fmt: skip


def score(names: list[str], data: Path, out: Path, small: bool) -> None:
    """A row per model, task, readout and layer; what is in `out` already is not done again."""
    from layerscope.models import load

    torch.set_float32_matmul_precision("high")
    for name, count in SMALL_ITEMS.items() if small else ():
        setattr(improve_tasks, name, count)
    done = (
        pd.read_csv(out)
        if out.exists()
        else pd.DataFrame(columns=["model", "task", "small", "fit"])
    )
    if "small" not in done or (done["small"] != small).any():
        raise SystemExit(
            f"{out} has rows of {'the full size' if small else '--small'}, or does not say: give another --out."
        )
    models: dict[str, Any] = {}
    for place in heads.places(data, False):
        if small and (place.name not in heads.SMALL or "Banking" in place.name):
            continue
        left = [
            name
            for name in names
            if not ((done["model"] == name) & (done["task"] == place.name)).any()
        ]
        if not left:
            continue
        task, pool = heads.split(place)  # takes longer than reading the texts
        pool, cut = pool[: FIT if small else 1000], len(task.texts)
        for name in left:
            start = time.perf_counter()
            model = models.setdefault(name, None) or load(name)
            models[name] = model
            vectors = read_vectors(
                model, task.texts + pool, TEMPLATE, LENGTH, 256 if heads.DEVICE == "cuda" else None
            )
            layers, table = len(vectors["mean"]), []
            for readout in READOUTS:
                for layer, own in enumerate(apply_readout(readout, vectors, cut, TEACHER)):
                    value = task.score(
                        torch.tensor(unit(own)[None], dtype=torch.float32, device=heads.DEVICE)
                    )
                    table.append(
                        {"model": name, "task": task.name, "type": task_type(task.name), "readout": readout, "layer": layer,
                         "depth": round(layer / (layers - 1), 4), "score": round(float(value[0]), 4), "texts": cut,
                         "fit": len(pool), "small": small, "commit": rows.commit()}
                    )  # fmt: skip
            done = pd.concat([done, pd.DataFrame(table)], ignore_index=True)
            done.to_csv(out, index=False)
            print(
                f"{name} {task.name}: {cut} + {len(pool)} texts, {time.perf_counter() - start:.0f} s",
                flush=True,
            )


def table(file: Path, figure: Path | None = None) -> None:
    """What the study says of these scores."""
    found = pd.read_csv(file)
    if found["small"].nunique() > 1:
        raise SystemExit(
            f"{file} mixes rows of --small with full ones: their scores cannot be compared."
        )
    scores = found.rename(columns={"readout": "reading", "score": "value"}).assign(kind="score")
    whole, verdict = summarize(scores, 0)
    print("\n".join(verdict))
    mixed = whole[whole["kind"] == "mixed"]
    print(mixed[["reading", "value", "ci_low", "ci_high"]].round(2).to_string(index=False))
    if figure is not None:
        STUDY.draw(whole, {}).savefig(figure, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["describe", "score", "table"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mteb"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/factorial.csv"))
    parser.add_argument(
        "--problems", type=Path, help="score by mteb's measures what `describe` wrote"
    )
    parser.add_argument("--tasks", nargs="+", help="only these of the problems")
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--small", action="store_true", help="five tasks of fewer items: for a CPU")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.step == "describe":
        describe(Path(given.names[0]), given.data, given.items)
    elif given.problems is not None:
        score_described(given.names, given.problems, given.out, given.tasks)
    elif given.step == "score":
        score(given.names, given.data, given.out, given.small)
    else:
        table(Path(given.names[0]), given.figure)


if __name__ == "__main__":
    main()
