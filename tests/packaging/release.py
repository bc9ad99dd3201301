"""`make release VERSION=0.2.0`: give the changelog's section "Unreleased" a version and a date, in
every file that has them.

    python tests/packaging/release.py 0.2.0                # with the date of today
    python tests/packaging/release.py 0.2.0 --date 2026-11-16

It changes three lines and publishes nothing. `make release-check` looks at the result.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lines(version: str, date: str) -> dict[str, tuple[str, str]]:
    """File -> the line to change, as a pattern, and what it becomes."""
    return {
        "src/layerscope/version.py": (r'^VERSION = "[^"]+"$', f'VERSION = "{version}"'),
        "CHANGELOG.md": (r"^## Unreleased$", f"## {version} ({date})"),
        "CITATION.cff": (
            r"^version: .+$(\ndate-released: .+$)?",
            f"version: {version}\ndate-released: {date}",
        ),
    }


def release(root: Path, version: str, date: str) -> None:
    """Change the lines, all or none."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise SystemExit(f"release: {version!r} is no version. Give three numbers, such as 0.2.0.")
    datetime.date.fromisoformat(date)
    texts = {}
    for name, (pattern, line) in lines(version, date).items():
        text = (root / name).read_text(encoding="utf-8")
        texts[name], count = re.subn(pattern, line, text, flags=re.MULTILINE)
        if count != 1:
            raise SystemExit(
                f"release: {name} has {count} lines like {pattern}, where one was expected. Nothing was changed."
            )
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    given = parser.parse_args()
    release(ROOT, given.version, given.date)
    print(
        f"{given.version}, {given.date}. Next: make release-check, then commit. CONTRIBUTING.md has the other steps.",
        file=sys.stderr,
    )
