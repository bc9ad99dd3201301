"""What checksums cost: a profile of a tiny model, whose vectors are many and whose passes are
cheap, with the clock on them.

python benchmarks/checksums.py --texts 1500
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tiny import tiny_model

from layerscope.profiling import profile
from layerscope.store import checked, folder, verify


class Clock:
    """Adds up the time of some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with the clock on."""

        def run(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds += time.perf_counter() - start

        return run


def main() -> None:
    """Profile once and print the share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1500)
    texts = [
        f"text {i} with some words " + "and more of them " * (i % 12)
        for i in range(parser.parse_args().texts)
    ]
    clock = Clock()
    checked._crc = clock.timed(checked._crc)
    verify.sha256_of = folder.sha256_of = clock.timed(verify.sha256_of)
    checked.checksum = clock.timed(checked.checksum)
    model = tiny_model("llama")
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        profile(
            model,
            texts,
            out=Path(scratch) / "run",
            views=4,
            permutations=3,
            max_length=64,
            progress=False,
        )
        whole = time.perf_counter() - start
    print(
        f"{len(texts)} texts: {whole:.1f} s, of which checksums {clock.seconds:.3f} s, {100 * clock.seconds / whole:.2f} %"
    )


if __name__ == "__main__":
    main()
