"""The tools of this folder, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_tool(tool: str, what: str, count: int, seed: int) -> dict[str, Any]:
    """What `python -m tests.faults.TOOL WHAT COUNT SEED` found."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", f"tests.faults.{tool}", what, str(count), str(seed)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command[2:])} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))
