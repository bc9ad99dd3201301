"""Write the folder of this release: every kind of run, and a store, of a tiny model. Once per
release; it never changes then.

python -m tests.store.make_release
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

RELEASES = Path(__file__).parents[1] / "fixtures" / "releases"
KINDS = {
    "profile": "profile",
    "evaluate": "evaluation",
    "probe": "probe",
    "study": "study",
    "sweep": "sweep",
    "improve": "improve",
}


def main() -> None:
    """Run every command into a folder of its own, and keep what it wrote."""
    from layerscope.version import VERSION
    from tests.faults.commands import Commands

    into = RELEASES / VERSION
    if into.exists():
        raise SystemExit(f"{into} is there already, and a release's folder never changes.")
    with tempfile.TemporaryDirectory(prefix="layerscope-release-") as folder:
        home = Path(folder)
        os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
        commands = Commands(home, list(KINDS))
        for command, kind in KINDS.items():
            commands.run(command, home / command)
            shutil.copytree(home / command / "run", into / kind)
        shutil.copytree(home / "evaluate" / "store", into / "store")


if __name__ == "__main__":
    main()
