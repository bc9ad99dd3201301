"""How long the commonest mistakes of the command line take to be told, each in a fresh process.

python benchmarks/mistakes.py            # prints the table, and writes
benchmarks/results/mistakes.md
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "mistakes.md"
ROUNDS = 5


def mistakes(folder: Path) -> dict[str, list[str]]:
    """Each by what is wrong; `smollm2-135m` is a model that is in the cache or can be had."""
    texts, mine = folder / "texts.csv", folder / "mine"
    texts.write_text("text,label\none text,a\nanother,b\n")
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    model, out = "smollm2-135m", str(folder / "out")
    return {
        "no such file of texts": [
            "improve",
            model,
            "--data",
            str(folder / "text.csv"),
            "--out",
            out,
        ],
        "a model's name misspelled": ["improve", "smollm-135m", "--data", str(texts), "--out", out],
        "a layer that does not exist": ["export", model, "--layer", "99", "--out", out],
        "a column misspelled": [
            "improve",
            model,
            "--data",
            str(texts),
            "--column",
            "txt",
            "--out",
            out,
        ],
        "no such run": ["report", str(folder / "nothing")],
        "an output folder in use": ["improve", model, "--data", str(texts), "--out", str(mine)],
        "a template misspelled": [
            "improve",
            model,
            "--data",
            str(texts),
            "--templates",
            "one-wrod",
            "--out",
            out,
        ],
        "a metric misspelled": ["profile", model, "--metrics", "promt_entropy", "--out", out],
        "an option misspelled": ["improve", model, "--dta", str(texts), "--out", out],
    }


def main() -> None:
    """Time each in turns; the table has the median of the wall time, and the processor's."""
    with tempfile.TemporaryDirectory() as place:
        given = mistakes(Path(place))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in given}
        said: dict[str, str] = {}
        for _ in range(ROUNDS):
            for name, words in given.items():
                before, start = os.times(), time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-m", "layerscope", *words],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                wall, after = time.perf_counter() - start, os.times()
                cpu = (
                    after.children_user
                    + after.children_system
                    - before.children_user
                    - before.children_system
                )
                assert done.returncode in (1, 2), (name, done)
                times[name].append((wall, cpu))
                said[name] = " ".join(done.stderr.replace("│", " ").split())
        rows = [
            (name, *(sorted(column)[ROUNDS // 2] for column in zip(*times[name], strict=True)))
            for name in given
        ]
    lines = [
        "# Time until a mistake is told", "",
        f"`python benchmarks/mistakes.py`, {ROUNDS} rounds in turns, median; {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} at the end. Each is a fresh process.", "",
        "| mistake | seconds | of a processor |", "|---|---|---|",
        *(f"| {name} | {wall:.2f} | {cpu:.2f} |" for name, wall, cpu in rows), "",
    ]  # fmt: skip
    RESULT.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    print(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
