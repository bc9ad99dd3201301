"""Score models that are ready to use, on the tasks and by the measures of other benchmarks.

    python benchmarks/ready_made.py minilm-l6 wordllama all-mpnet-base-v2 \
        --out benchmarks/results/ready-made.csv

A sentence encoder is read as it is published: last layer, mean of tokens. `wordllama` is the static
model of the package of that name (`pip install wordllama`); its texts are cut at its own tokens.
The scored texts, the splits and the measures are those of `record_choices.py` (twenty tasks) and of
`blocks.py` (five of them), so that scores compare. Rows that the file has are not computed again.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import record_choices
import torch
from common import commit, make_parser
from record_choices import LENGTH

import blocks
import layerscope

COLUMNS = ("benchmark", "model", "task", "score", "texts", "seconds", "commit")
BENCHMARKS = ("record_choices", "blocks")
Encode = Callable[[list[str]], np.ndarray]


def open_model(name: str) -> Encode:
    """Return the function from texts to vectors of a model."""
    if name == "wordllama":
        return open_wordllama()
    model = layerscope.load(name)
    return lambda texts: np.asarray(layerscope.encode(model, texts, max_length=LENGTH))


def open_wordllama() -> Encode:
    """Return WordLlama's vectors: the mean of static vectors of a text's tokens."""
    import wordllama  # type: ignore[import-not-found]

    folder = Path(wordllama.__file__).parent
    model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
    model.tokenizer.enable_truncation(LENGTH)
    return lambda texts: np.asarray(model.embed(texts))


def measure(benchmark: str, place: Path, encode: Encode) -> tuple[float, int, float]:
    """Return a task's score by a benchmark, the number of texts, and the seconds of encoding."""
    if benchmark == "blocks":
        cut_task = blocks.load_task(place.name, place.parent)
        vectors, seconds = encode_timed(encode, cut_task.texts())
        rows = torch.nn.functional.normalize(vectors, dim=-1).numpy()
        points = blocks.score(cut_task, dict(zip(cut_task.texts(), rows, strict=True)))
    else:
        task = record_choices.load_task(place)
        vectors, seconds = encode_timed(encode, task.texts)
        points = float(record_choices.score(task, vectors[None])[0])
    return points, len(vectors), seconds


def encode_timed(encode: Encode, texts: list[str]) -> tuple[torch.Tensor, float]:
    """Return the vectors of texts, and the seconds that they took."""
    start = time.perf_counter()
    vectors = torch.as_tensor(encode(texts), dtype=torch.float32)
    return vectors, time.perf_counter() - start


def make_table(file: Path) -> str:
    """Return the mean scores of every model: English tasks, other languages, tasks of blocks.py."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    groups: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        is_english = "-" not in row["task"] and row["task"] != "KorSTS"
        group = "English" if is_english else "other languages"
        if row["benchmark"] == "blocks":
            group = "blocks.py"
        groups.setdefault(row["model"], {}).setdefault(group, []).append(float(row["score"]))
    names = ("English", "other languages", "blocks.py")
    out = [f"| model | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for model, scores in groups.items():
        means = [
            f"{np.mean(scores[name]):.1f} ({len(scores[name])} tasks)" if name in scores else "–"
            for name in names
        ]
        out.append(f"| {model} | {' | '.join(means)} |")
    return "\n".join(out)


def make_blocks_table(file: Path) -> str:
    """Return the mean scores of the encoders with fewer blocks that blocks.py recorded."""
    five = (*blocks.CLASSES, *blocks.PAIRS)
    rows = [row for row in json.loads(file.read_text("utf-8"))["rows"] if row["task"] in five]
    scores: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        scores.setdefault((row["blocks"], row["way"]), []).append(row["score"])
    out = ["| MiniLM-L6 | blocks | mean score |", "|---|---|---|"]
    for (count, way), points in scores.items():
        out.append(f"| {way} | {count} | {np.mean(points):.1f} |")
    return "\n".join(out)


def main() -> None:
    """Score every model on every task, and add the rows to a file."""
    parser = make_parser(__doc__)
    parser.add_argument("models", nargs="+")
    folders = [Path("../shared/data/mteb"), Path("../shared/data/multi")]
    parser.add_argument("--data", type=Path, nargs="+", default=folders)
    parser.add_argument("--benchmarks", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    done = set()
    if args.out.exists():
        with args.out.open(newline="", encoding="utf-8") as lines:
            done = {tuple(row[name] for name in COLUMNS[:3]) for row in csv.DictReader(lines)}
    else:
        args.out.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    places = [place for folder in args.data for place in sorted(folder.iterdir()) if place.is_dir()]
    five = (*blocks.CLASSES, *blocks.PAIRS)
    for name in args.models:
        encode = open_model(name)
        for benchmark in args.benchmarks:
            for place in places:
                key = (benchmark, name, place.name)
                if key in done or (benchmark == "blocks" and place.name not in five):
                    continue
                points, texts, seconds = measure(benchmark, place, encode)
                row = (*key, f"{points:.3f}", texts, f"{seconds:.1f}", commit())
                with args.out.open("a", newline="", encoding="utf-8") as lines:
                    csv.writer(lines, lineterminator="\n").writerow(row)
                print(f"{name:20}{place.name:32}{points:8.1f}{seconds:8.0f} s", flush=True)
    print(make_table(args.out))
    print(make_blocks_table(Path(__file__).parent / "results" / "blocks.json"))


if __name__ == "__main__":
    main()
