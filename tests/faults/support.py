"""The tools of this folder, each in a process of its own."""

from __future__ import annotations

import json
from typing import Any

from tests.forking import run_python


def run_tool(tool: str, what: str, count: int, seed: int) -> dict[str, Any]:
    """What `python -m tests.faults.TOOL WHAT COUNT SEED` found."""
    program = f"import runpy; runpy.run_module('tests.faults.{tool}', run_name='__main__')"
    ended = run_python(program, what, str(count), str(seed))
    if ended.returncode != 0:
        raise RuntimeError(
            f"{tool} {what} {count} {seed} ended with {ended.returncode}: {ended.stderr[-2000:]}"
        )
    return dict(json.loads(ended.stdout.splitlines()[-1]))
