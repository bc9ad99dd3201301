"""`layerscope compare` as a user runs it: two language models, today and improved, and a ready
encoder, in several domains.

The command is run twice on the same texts: without labels, and with labels of other texts. The
first verdict is then read against the labels, which it did not see.

    python benchmarks/compare.py --data-dir MTEB --models smollm2-135m gemma3-270m minilm-l6

`MTEB` is a folder with <Task>/<split>.jsonl.gz in MTEB's columns; TrecQuestions is catalogued.
Settings of `improve` were chosen on seven tasks, of which Banking77 is one; the other domains had
no part in it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.version import VERSION

RESULT = Path(__file__).parent / "results" / "compare.md"
DOMAINS = ("Banking77Classification", "MassiveScenarioClassification", "TrecQuestions")
MEASURE = "right nearest neighbor, %"


def rows_of(task: str, split: str, data_dir: Path) -> list[tuple[str, str]]:
    """Distinct texts and their labels."""
    if task in TASKS:
        rows: list[Any] = list(TASKS.get(task).splits()[split])
    else:
        with gzip.open(data_dir / task / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
    return list(
        {
            row["text"]: str(row.get("label_text", row["label"]))
            for row in rows
            if row["text"].strip()
        }.items()
    )


def asked(words: list[str], place: Path) -> tuple[dict[str, Any], str]:
    """What the command says, and it and its seconds in words."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "layerscope", *words, "--json"],
        cwd=place,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(
        done.stdout
    ), f"`layerscope {' '.join(words)}` ({time.perf_counter() - start:.0f} s)"


def compared(task: str, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Rows of the table, and what was said."""
    rng = np.random.default_rng(given.seed)
    train, test = rows_of(task, "train", given.data_dir), rows_of(task, "test", given.data_dir)
    drawn = {
        "texts.csv": [
            ("text",),
            *((train[i][0],) for i in rng.permutation(len(train))[: given.texts]),
        ],
        "labels.csv": [
            ("text", "label"),
            *(test[i] for i in rng.permutation(len(test))[: given.labels]),
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, rows in drawn.items():
            with (place / name).open("w", encoding="utf-8", newline="") as stream:
                csv.writer(stream).writerows(rows)
        words = ["compare", *given.models, "--data", "texts.csv"]
        blind, command = asked(words, place)
        known, again = asked([*words, "--labels", "labels.csv"], place)
    scores = {(row["model"], row["read"]): row[MEASURE] for row in known["table"]}
    picked, best = scores[blind["pick"]["model"], blind["pick"]["read"]], max(scores.values())
    said = [
        f"## {task}", "", f"{command}:", f"> {blind['verdict']}", "", f"By the labels, which it did not see: {picked:.1f}; the "
        f"best has {best:.1f}.", "", f"{again}:", f"> {known['verdict']}", "", *(f"- {note}" for note in known["notes"]), "",
    ]  # fmt: skip
    rows = [
        f"| {task} | {row['model']}, {row['read']} | {row[MEASURE]:.1f} | {row['agreement with others']:.3f} | "
        f"{row['texts per second']:.0f} | {row['parameters, M']:.1f} |"
        for row in known["table"]
    ]
    print("\n".join([*rows, *said]), flush=True)
    return rows, said


def main() -> None:
    """Compare on every domain and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["smollm2-135m", "gemma3-270m", "minilm-l6"])
    parser.add_argument("--tasks", nargs="+", default=list(DOMAINS))
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--labels", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=Path("mteb"))
    given = parser.parse_args()
    table: list[str] = []
    told: list[str] = []
    for task in given.tasks:
        rows, said = compared(task, given)
        table, told = table + rows, told + said
        lines = [
            "# `compare` as a user runs it", "",
            f"`python benchmarks/compare.py --texts {given.texts} --labels {given.labels} --seed {given.seed}`, layerscope "
            f"{VERSION}: improved on half of the texts; labels of others. Speeds are of a machine that did other work too.", "",
            "| texts | model | nearest right, % | agreement with others | texts per second | parameters, M |",
            "|---|---|---|---|---|---|", *table, "", *told,
        ]  # fmt: skip
        RESULT.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
