"""What `layerscope improve` is worth: the chosen reading against today's and the judge, on tasks
whose labels it does not see.

    python benchmarks/improve.py smollm2-135m --data ../shared/data/mteb
    python benchmarks/improve.py gemma3-270m --judge none --budget 0.3 --csv gemma.csv

`improve` gets a sample of a task's texts without labels. Then all texts of the task are scored with
the labels that were hidden: as the model reads them today (last layer, mean of the tokens), as
`improve` chose, and by the judge. Scores are `improve_tasks.py`'s, in points.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from common import make_parser
from improve_tasks import Task, load_tasks

import layerscope
from layerscope.models import LoadedModel, load


def score(task: Task, vectors: np.ndarray) -> float:
    """The score of vectors (texts, D) of a task's texts, in points."""
    rows = torch.nn.functional.normalize(torch.as_tensor(vectors, dtype=torch.float32), dim=-1)
    return task.score(rows)


def measure(
    task: Task, model: LoadedModel, judge: LoadedModel | str, args: argparse.Namespace
) -> dict[str, str | float]:
    """A row of the table: the scores of a task, and what was chosen."""
    picked = np.random.default_rng([args.seed, len(task.texts)]).permutation(len(task.texts))
    sample = [task.texts[i] for i in picked[: args.texts]]
    start = time.perf_counter()
    better = layerscope.improve(
        model, sample, judge=judge, budget=args.budget, sample=args.texts, seed=args.seed,
        max_length=args.max_length, progress=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    today = layerscope.encode(model, task.texts, max_length=args.max_length)
    row: dict[str, str | float] = {
        "model": model.name,
        "task": task.name,
        "today": score(task, today),
        "improved": score(task, better.encode(task.texts)),
        "judge": np.nan if isinstance(judge, str) else score(task, layerscope.encode(judge, task.texts)),
        "layer": better.choice.layer,
        "readout": str(better.choice.readout),
        "cost": better.manifest["evidence"].get("relative_cost", 1.0),
        "seconds": seconds,
    }  # fmt: skip
    print(
        f"{task.name:32}{row['today']:8.1f}{row['improved']:10.1f}{row['judge']:8.1f}{row['cost']:7.2f} ×"
        f"{seconds:8.0f} s  layer {row['layer']}, {row['readout']}",
        flush=True,
    )
    return row


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--judge", default="minilm-l6", help="a sentence encoder, or none")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--data", type=Path, nargs="+", default=[Path("../shared/data/mteb")])
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--texts", type=int, default=600, help="texts that improve sees")
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write the rows here")
    args = parser.parse_args()
    model = load(args.model)
    judge = args.judge if args.judge == "none" else load(args.judge)
    print(f"{'task':32}{'today':>8}{'improved':>10}{'judge':>8}{'cost':>9}")
    rows = [
        measure(task, model, judge, args) for task in load_tasks(args.data, args.tasks, args.seed)
    ]
    means = [
        float(np.mean([float(row[name]) for row in rows]))
        for name in ("today", "improved", "judge")
    ]
    print(f"{f'mean of {len(rows)} tasks':32}{means[0]:8.1f}{means[1]:10.1f}{means[2]:8.1f}")
    if args.csv is not None:
        pd.DataFrame(rows).to_csv(args.csv, index=False)


if __name__ == "__main__":
    main()
