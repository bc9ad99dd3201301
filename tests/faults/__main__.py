"""All faults, as many as are asked for, on some processes; the figures as a table, and every
defect.

    python -m tests.faults                                        # 10,000 inputs, 100 kills a command, 800 damaged files
    python -m tests.faults --share 0.1 --seed 7 --out faults.json

Exit code 1: something was silently wrong, not mended, or ended in a traceback.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults.commands import NAMES
from tests.faults.damage import KINDS
from tests.faults.fuzz import CASES
from tests.faults.support import run_tool

# the cheap kinds of input take what the dear ones leave of the ten thousand
INPUTS = {
    "command": 1000,
    "embedding": 500,
    "model": 500,
    "run": 700,
    "layer_map": 300,
    "task": 700,
}
DEFECTS = ("wrong", "silent", "errors", "left", "defects")


def planned(inputs: int, kills: int, flips: int, share: float) -> list[tuple[str, str, int]]:
    """(tool, what, how many), the longest first."""
    dear = {name: INPUTS[name] for name in INPUTS if name in CASES}
    cheap = [name for name in CASES if name not in dear]
    each = -(-(inputs - sum(dear.values())) // len(cheap))
    work = [("killer", name, kills) for name in NAMES]
    work += [("damage", kind, -(-flips // len(KINDS))) for kind in KINDS]
    work += [
        ("fuzz", name, count) for name, count in {**dear, **dict.fromkeys(cheap, each)}.items()
    ]
    return [(tool, what, max(1, round(count * share))) for tool, what, count in work if count > 0]


def count_of(found: dict[str, Any]) -> int:
    """How many kills, files or inputs."""
    return int(next(found[name] for name in ("kills", "files", "inputs") if name in found))


def main(words: Sequence[str] | None = None) -> int:
    """Run everything, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100, help="of each command")
    parser.add_argument("--flips", type=int, default=800)
    parser.add_argument("--share", type=float, default=1.0, help="of all of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="tools, such as killer,damage")
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    given = parser.parse_args(words)
    work = planned(given.inputs, given.kills, given.flips, given.share)
    work = [one for one in work if not given.only or one[0] in given.only.split(",")]
    results: list[dict[str, Any]] = []
    started = time.monotonic()

    def run(one: tuple[str, str, int]) -> None:
        tool, what, count = one
        try:
            found = run_tool(tool, what, count, given.seed)
        except RuntimeError as error:
            found = {"inputs": 0, "defects": [str(error)]}
        results.append({"tool": tool, "what": what, **found})
        bad = [defect for name in DEFECTS for defect in found.get(name, ())]
        took = time.monotonic() - started
        print(
            f"{took:7.0f} s  {tool:6} {what:16} {count_of(found):6}  {len(bad)} defects",
            file=sys.stderr,
            flush=True,
        )
        for defect in bad[:20]:
            print(f"    {defect}", file=sys.stderr, flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(results, indent=1))

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(run, work))
    print("| what | how many | defects | seconds |\n|---|---|---|---|")
    for one in sorted(results, key=lambda one: (one["tool"], one["what"])):
        bad = sum(len(one.get(name, ())) for name in DEFECTS)
        print(
            f"| {one['tool']} {one['what']} | {count_of(one)} | {bad} | {one.get('seconds', '')} |"
        )
    return int(any(one.get(name) for one in results for name in DEFECTS))


if __name__ == "__main__":
    sys.exit(main())
