"""Known vulnerabilities of the pinned packages, by pip-audit, and of how many of them anything
could be asked.

    python tests/packaging/audit.py .venv-audit/bin/pip-audit

pip-audit ends well where no advisories can be had: then nothing was checked, and this says so and
exits with 2. Exit code 1: a package has a known vulnerability.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def asked(pip_audit: str, constraints: Path) -> dict[str, Any]:
    """What pip-audit answers, for the very versions that are pinned."""
    words = [
        pip_audit,
        "-r",
        str(constraints),
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(ended.stdout))
    except ValueError:
        said = (ended.stderr.strip().splitlines() or ["no answer"])[-1]
        return {"dependencies": [], "reason": said}


def verdict(answer: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code, and what to print."""
    packages = answer["dependencies"]
    checked = [one for one in packages if "skip_reason" not in one]
    bad = [
        f"{one['name']} {one['version']}: {vuln['id']}"
        for one in checked
        for vuln in one.get("vulns", ())
    ]
    if not checked:
        reason = answer.get("reason") or (packages[0]["skip_reason"] if packages else "no packages")
        return 2, [f"audit: no advisories can be had here, so nothing was checked ({reason[:200]})"]
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    left = f"; not known to the advisories: {', '.join(skipped)}" if skipped else ""
    return int(bool(bad)), [
        *bad,
        f"audit: {len(bad)} known vulnerabilities in {len(checked)} of {len(packages)} packages{left}",
    ]


if __name__ == "__main__":
    code, lines = verdict(asked(sys.argv[1], ROOT / "constraints.txt"))
    print("\n".join(lines))
    sys.exit(code)
