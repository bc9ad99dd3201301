"""Memory of `improve` on a file of a million texts: the choice on a sample, the mean over all of
them, in a stream.

A small decoder with random weights, and made-up texts that are written to a file without being
held. The peak (VmHWM) of the process is printed beside its size before the texts are touched.

    python benchmarks/improve_million.py                     # 1,000,000 texts
    python benchmarks/improve_million.py --texts 50000 --center-on auto
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from memory import make_model, status_mb

WORDS = 3000


def write_texts(path: Path, count: int) -> None:
    """A CSV file of texts of six made-up words, a few of them more than once."""
    rng = np.random.default_rng(0)
    words = [
        "".join(rng.choice(list("etaoinshrdlu"), size=rng.integers(2, 8))) for _ in range(WORDS)
    ]
    with path.open("w", encoding="utf-8") as stream:
        stream.write("id,text\n")
        for start in range(0, count, 10_000):
            drawn = rng.integers(0, WORDS, size=(min(10_000, count - start), 6))
            stream.writelines(
                f"{start + i},{' '.join(words[k] for k in row)}\n" for i, row in enumerate(drawn)
            )


def prefer_centered() -> None:
    """Random weights give no reason for any choice: take the best centered readout of the last
    layer, so as to find a mean."""
    from layerscope.improving import job

    own = job.decide

    def decide(judgment, readouts, layers, costs, budget=None):  # type: ignore[no-untyped-def]
        centered = np.array(
            [
                [r.centering == "corpus" and layer == layers[-1] for layer in layers]
                for r in readouts
            ]
        )
        return replace(
            own(judgment, readouts, layers, costs, budget),
            chosen=judgment.best(judgment.defined & centered),
            weak="",
        )

    job.decide = decide
    job.ImproveJob._trusted = lambda self, panel, decision, check: decision


def main() -> None:
    """Run once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--center-on", default="all", choices=["all", "auto", "sample"])
    parser.add_argument("--sample", type=int, default=1000)
    given = parser.parse_args()
    import layerscope

    prefer_centered()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.csv"
        write_texts(file, given.texts)
        model = make_model()
        before, start = status_mb("VmRSS"), time.perf_counter()
        result = layerscope.improve(
            model, file, column="text", judge="none", templates=["one-word"], sample=given.sample, max_length=64,
            center_on=given.center_on, out=Path(folder) / "better", store=Path(folder) / "store",
        )  # fmt: skip
        told = {
            "texts": result.manifest["texts"]["read"],
            "distinct": result.manifest["texts"]["distinct"],
            "file_mb": round(file.stat().st_size / 2**20),
            "choice": f"layer {result.choice.layer}, {result.choice.readout}",
            "centered_on": result.manifest["texts"]["centered_on"],
            "rss_before_mb": round(before),
            "peak_rss_mb": round(status_mb("VmHWM")),
            "seconds": round(time.perf_counter() - start),
        }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
