"""`evaluate` from end to end: what reading, encoding, scoring and gains take, and whether a GPU's
scores are mteb's.

    python benchmarks/evaluate_whole.py --data-dir DIR --model smollm2-135m --out FILE.json

Every task of DIR at all layers under six readouts with `--scoring device`, then one readout by
mteb's own code from the vectors that the first run stored. A folder of random weights of the same
shape takes the same time where no weights can be had.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import make_parser

import layerscope
from layerscope import Evaluation
from layerscope.core.statistics import Z95, spearman
from layerscope.evaluation import job
from layerscope.evaluation.results import read_result

READOUTS = [
    f"plain/{pooling}/{norm}"
    for pooling in ("mean", "wmean", "last")
    for norm in ("applied", "raw")
]


def seconds_of(run: Evaluation) -> dict[str, float]:
    """What the scores of each task took, which is not what the run waited for them."""
    assert run.path is not None
    results = [read_result(file) for file in (run.path / "results").glob("*/*.safetensors")]
    return pd.DataFrame(results).groupby("task")["seconds"].sum().to_dict()


def beside(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """By task: device − mteb in points, over layers; and whether layers are in the same order."""
    keys, rows = ["task", "layer", "template", "pooling", "final_norm"], []
    both = ours.merge(theirs, on=keys, suffixes=("", "_mteb")).dropna(
        subset=["score", "score_mteb"]
    )
    for task, same in both.groupby("task"):
        apart = 100 * (same["score"] - same["score_mteb"]).to_numpy()
        row = {
            "task": task,
            "scores": len(same),
            "mean": apart.mean(),
            "half": Z95 * apart.std(ddof=1) / np.sqrt(len(same)),
        }
        order = float(spearman(same["score"], same["score_mteb"]))
        rows.append({**row, "largest": abs(apart).max(), "order": order})
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--sample", type=int)
    parser.add_argument(
        "--in-turn",
        action="store_true",
        help="score a step after it was encoded: what each takes alone",
    )
    parser.add_argument("--no-mteb", action="store_true", help="leave mteb's scores out")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tasks = sorted(path.parent.name for path in args.data_dir.glob("*/test*.jsonl.gz"))
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    found: dict[str, Any] = {"torch": torch.__version__, "dtype": dtype}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as work:
        given: dict[str, Any] = {
            "data_dir": args.data_dir,
            "sample": args.sample,
            "dtype": dtype,
            "store": Path(work) / "store",
            "store_size": 50 * 10**9,
        }
        if args.in_turn:
            job.tasks_ahead = lambda model: 0
        runs = []
        ways = {"device": READOUTS} | ({} if args.no_mteb else {"mteb": READOUTS[:1]})
        for scoring, readouts in ways.items():
            start = time.perf_counter()
            run = layerscope.evaluate(
                args.model,
                tasks,
                readouts=readouts,
                scoring=scoring,
                out=Path(work) / scoring,
                **given,
            )
            whole, each = time.perf_counter() - start, seconds_of(run)
            print(
                f"{scoring}: {len(run.scores)} scores in {whole:.1f} s; scores alone {sum(each.values()):.1f} s"
            )
            print(f"  failed: {run.failed}", flush=True)
            facts = {name: run.manifest.get(name) for name in ("counts", "scoring", "failed")}
            found[scoring] = {"seconds": whole, "scores": each, **facts}
            runs.append(run)
        table = pd.DataFrame() if args.no_mteb else beside(runs[0].scores, runs[1].scores)
    encoding, gains = (found["device"]["waited"][name] for name in ("encode", "gains"))
    taken = sum(found["device"]["scores"].values())
    print(
        f"scoring over encoding: {taken / encoding:.2f} x, with gains {(taken + gains) / encoding:.2f} x"
    )
    if len(table):
        print(table.round(4).to_string(index=False))
    if args.out:
        args.out.write_text(
            json.dumps({**found, "beside_mteb": table.to_dict("records")}, indent=1)
        )


if __name__ == "__main__":
    main()
