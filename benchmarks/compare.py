"""`layerscope compare` on labeled texts: two language models, today and improved, and a ready encoder.

The models are improved on texts without labels; the labels are of other texts. For every way to read a model: how often the
nearest neighbor has the right label, how often one of the three nearest has it, and what `compare` says.

    python benchmarks/compare.py --data-dir MTEB --models smollm2-135m gemma3-270m minilm-l6

`MTEB` is a folder with <Task>/<split>.jsonl.gz in MTEB's columns; TrecQuestions is catalogued. No setting was chosen on these.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.heads import unit
from layerscope.embedding import comparing
from layerscope.evaluation.tasks.catalogue import TASKS

RESULT = Path(__file__).parent / "results" / "compare.md"
DOMAINS = ("Banking77Classification", "MassiveScenarioClassification", "TrecQuestions")


def rows_of(task: str, split: str, data_dir: Path) -> list[tuple[str, str]]:
    """Distinct texts and their labels."""
    if task in TASKS:
        rows: list[Any] = list(TASKS.get(task).splits()[split])
    else:
        with gzip.open(data_dir / task / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
    return list({row["text"]: str(row.get("label_text", row["label"])) for row in rows if row["text"].strip()}.items())


def compared(task: str, models: list[str], texts: int, labels: int, data_dir: Path, seed: int) -> tuple[list[str], str]:
    """Rows of the table and the verdict."""
    rng = np.random.default_rng(seed)
    train, test = rows_of(task, "train", data_dir), rows_of(task, "test", data_dir)
    given = [train[i][0] for i in rng.permutation(len(train))[:texts]]
    top3: list[float] = []
    one_nearest = comparing.label_items

    def both(labeled: Any, vectors: Any) -> np.ndarray:
        rows = unit(np.stack([vectors[text] for text in labeled.sides[0]]))
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -np.inf)
        near = np.argsort(-cosines, axis=1)[:, :3]
        top3.append(100 * float((labeled.targets[near] == labeled.targets[:, None]).any(1).mean()))
        return one_nearest(labeled, vectors)

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "labels.csv"
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["text", "label"])
            writer.writerows(test[i] for i in rng.permutation(len(test))[:labels])
        comparing.label_items = both
        start = time.perf_counter()
        found = comparing.compare_models(models, given, labels=file, sample=texts, seed=seed)
        comparing.label_items = one_nearest
    # a model's ways are read in the order in which the agreement names them
    names, three = list(found.agreement.index), dict(zip(found.agreement.index, top3, strict=True))
    print(task, f"{time.perf_counter() - start:.0f} s", found.verdict, found.notes, names, flush=True)
    rows = []
    for row in found.table.to_dict(orient="records"):
        name = row["model"] if row["read"] == "as it comes" else f"{row['model']}, {row['read']}"
        rows.append(
            f"| {task} | {name} | {row[found.measure]:.1f} | {three[name]:.1f} | {row['agreement with others']:.3f} | "
            f"{row['texts per second']:.0f} | {row['parameters, M']:.1f} |"
        )
    return rows, f"- {task}: {found.verdict}"


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
    rows, verdicts = [], []
    for task in given.tasks:
        more, verdict = compared(task, given.models, given.texts, given.labels, given.data_dir, given.seed)
        rows += more
        verdicts.append(verdict)
        lines = [
            "# `compare` on labeled texts", "",
            f"`python benchmarks/compare.py --texts {given.texts} --labels {given.labels} --seed {given.seed}`: fitted on half "
            "of the unlabeled texts; labels of other texts. Speeds are of a machine that did other work too.", "",
            "| texts | model | nearest right, % | one of three, % | agreement with others | texts per second | parameters, M |",
            "|---|---|---|---|---|---|---|", *rows, "", "What it says:", "", *verdicts, "",
        ]  # fmt: skip
        RESULT.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
