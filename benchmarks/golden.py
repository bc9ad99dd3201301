"""Golden tables: what layerscope gives for a fixed set of rows, and whether it still gives it.

    .venv/bin/python benchmarks/golden.py compare                  # all rows
    .venv/bin/python benchmarks/golden.py compare --rows probes,search
    .venv/bin/python benchmarks/golden.py write --rows search      # replaces its table
    .venv/bin/python benchmarks/golden.py times --base ../base --rows profile-smollm2 --repeats 5

Each row is a function in `golden_rows.py` and runs in a process of its own, on one thread, with an
empty vector store. A table in `results/golden` holds the row's numbers and choices. Two numbers are
equal if they differ by at most a millionth of the largest number of their group. Choices are equal
as strings. Differences that are meant are listed in `results/golden/changes.json`:
`{"ROW": {"GROUP": "reason"}}`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from golden_rows import ROWS

HERE = Path(__file__).resolve().parent
TABLES = HERE / "results" / "golden"
CHANGES = "changes.json"
TOLERANCE = 1e-6
SHOWN = 8
PACKAGES = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "mteb", "tokenizers")
DOWNLOADS = ("models", "corpora", "images", "tasks")
Table = dict[str, Any]


def cache_folder() -> Path:
    """Return the folder with what layerscope has downloaded."""
    own = os.environ.get("LAYERSCOPE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "layerscope"


def run_row(name: str, python: Path | str = sys.executable) -> tuple[Table, float]:
    """Run one row in its own process; return its table and its CPU seconds."""
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        folder = Path(scratch)
        (folder / "cache").mkdir()
        for part in DOWNLOADS:
            source = cache_folder() / part
            source.mkdir(parents=True, exist_ok=True)
            (folder / "cache" / part).symlink_to(source)
        environment = {
            **os.environ,
            "LAYERSCOPE_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONHASHSEED": "0",
            "CUDA_VISIBLE_DEVICES": "",
        }
        script, out = HERE / "golden_rows.py", folder / "table.json"
        words = [str(python), str(script), name, str(folder / "work"), str(out)]
        process = subprocess.Popen(
            words, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        output = process.stdout.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"row {name} failed with {python}:\n{output[-4000:]}")
        table = json.loads(out.read_text(encoding="utf-8"))
    return table, usage.ru_utime + usage.ru_stime


def are_equal(one: float | None, other: float | None, scale: float) -> bool:
    """Return whether two numbers are equal to within the tolerance, relative to a scale."""
    if one is None or other is None:
        return one is other
    if math.isinf(one) or math.isinf(other):
        return one == other
    return abs(one - other) <= TOLERANCE * scale


def group_scale(values: Mapping[str, float | None]) -> float:
    """Return the largest finite magnitude of a group of numbers."""
    finite = [abs(value) for value in values.values() if value is not None and math.isfinite(value)]
    return max(finite, default=0.0)


def differences(golden: Table, table: Table) -> Iterator[tuple[str, str]]:
    """Yield the group and a sentence for each difference between two tables of a row."""
    for part, unit in (("numbers", "number"), ("choices", "choice")):
        before, after = golden[part], table[part]
        for group in [*before, *(name for name in after if name not in before)]:
            if group not in after or group not in before:
                state = "is missing" if group not in after else "is new"
                yield group, f"the group of {part} {state}"
                continue
            scale = group_scale(before[group]) if part == "numbers" else 0.0
            for key in [*before[group], *(key for key in after[group] if key not in before[group])]:
                if key not in after[group]:
                    yield group, f"{unit} {key!r} is missing"
                elif key not in before[group]:
                    yield group, f"{unit} {key!r} is new"
                else:
                    old, new = before[group][key], after[group][key]
                    same = old == new if part == "choices" else are_equal(old, new, scale)
                    if not same:
                        yield group, f"{unit} {key!r}: {old!s:.300} before, {new!s:.300} now"


def commit_of(package: Path) -> str:
    """Return the commit of the checkout that a package was imported from."""
    words = ["git", "-C", str(package.parent), "describe", "--always", "--dirty", "--abbrev=8"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    return found | {name: importlib.metadata.version(name) for name in PACKAGES}


def dump(table: Table) -> str:
    """Return a table as JSON, a group on each line."""
    lines = []
    for key, value in table.items():
        if key in ("numbers", "choices"):
            groups = (
                f"  {json.dumps(group, ensure_ascii=False)}: "
                + json.dumps(values, ensure_ascii=False, separators=(",", ":"))
                for group, values in value.items()
            )
            lines.append(f"{json.dumps(key)}: {{\n" + ",\n".join(groups) + "\n}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(rows: Sequence[str], out: Path) -> None:
    """Run rows and write their tables."""
    out.mkdir(parents=True, exist_ok=True)
    for name in rows:
        table, seconds = run_row(name)
        package = Path(table.pop("layerscope"))
        facts = {
            "row": name,
            "commit": commit_of(package),
            "date": time.strftime("%Y-%m-%d"),
            "versions": versions(),
            "cpu_seconds": round(seconds, 1),
        }
        text = dump({**facts, **table})
        (out / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {seconds:.1f} CPU s, {len(text):,} characters, {package}", flush=True)


def report(name: str, golden: Table, table: Table, changes: Mapping[str, str]) -> bool:
    """Print the differences of a row; return whether one of them is not meant."""
    found = list(differences(golden, table))
    meant = [group for group, _ in found if group in changes]
    others = [f"  {group}: {sentence}" for group, sentence in found if group not in changes]
    for line in others[:SHOWN]:
        print(line)
    if len(others) > SHOWN:
        print(f"  and {len(others) - SHOWN} more")
    counts = [sum(map(len, golden[part].values())) for part in ("numbers", "choices")]
    outcome = f"{len(others)} differences" if others else "equal"
    listed = f", {len(meant)} differences that are meant" if meant else ""
    print(f"{name}: {outcome}{listed} ({counts[0]} numbers, {counts[1]} choices)", flush=True)
    return bool(others)


def compare(rows: Sequence[str], folder: Path) -> int:
    """Run rows and compare them with their golden tables; return the number that differ."""
    file = folder / CHANGES
    changes = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    failed = 0
    for name in rows:
        place = folder / f"{name}.json"
        if not place.is_file():
            print(f"{name}: there is no golden table {place}")
            failed += 1
            continue
        golden = json.loads(place.read_text(encoding="utf-8"))
        table, seconds = run_row(name)
        failed += report(name, golden, table, changes.get(name, {}))
        print(f"  {seconds:.1f} CPU s ({golden['cpu_seconds']} of {golden['commit']})", flush=True)
    extra = {file.stem for file in folder.glob("*.json") if file.name != CHANGES} - set(ROWS)
    for name in sorted(extra):
        print(f"{name}: its golden table has no row in golden_rows.py")
    return failed + len(extra)


def times(rows: Sequence[str], base: Path, repeats: int) -> None:
    """Run rows in turn here and in another checkout, and print the median CPU seconds of each."""
    pythons = {"base": base.resolve() / ".venv" / "bin" / "python", "here": Path(sys.executable)}
    for name in rows:
        seconds: dict[str, list[float]] = {place: [] for place in pythons}
        for python in pythons.values():
            run_row(name, python)  # downloads and compiled modules
        for _ in range(repeats):
            for place, python in pythons.items():
                seconds[place].append(run_row(name, python)[1])
        old, new = (statistics.median(seconds[place]) for place in pythons)
        print(
            f"{name}: {old:.1f} CPU s in {base}, {new:.1f} here, ratio {new / old:.3f} "
            f"(medians of {repeats})",
            flush=True,
        )


def chosen_rows(given: str | None) -> list[str]:
    """Return the rows of a comma-separated list, or all of them."""
    names = given.split(",") if given else list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise SystemExit(f"no row is named {', '.join(unknown)}. Rows: {', '.join(ROWS)}.")
    return names


def main() -> None:
    """Command line of the golden tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mode", choices=["write", "compare", "times", "list"])
    parser.add_argument("--rows", help="comma-separated names; all rows if not given")
    parser.add_argument("--out", type=Path, default=TABLES, help="folder of the tables")
    parser.add_argument("--base", type=Path, help="times: a checkout with an environment in .venv")
    parser.add_argument("--repeats", type=int, default=5, help="times: runs in each checkout")
    given = parser.parse_args()
    rows = chosen_rows(given.rows)
    start = time.perf_counter()
    if given.mode == "list":
        for name in rows:
            print(f"{name}: {(ROWS[name].__doc__ or '').splitlines()[0]}")
        return
    if given.mode == "times":
        if given.base is None:
            raise SystemExit("times compares two checkouts. Give the other one: --base FOLDER")
        times(rows, given.base, given.repeats)
    elif given.mode == "write":
        write(rows, given.out)
    else:
        failed = compare(rows, given.out)
        print(f"{failed} of {len(rows)} rows differ, {time.perf_counter() - start:.0f} s")
        raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
