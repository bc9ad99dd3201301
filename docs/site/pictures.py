"""Draw the pictures that need no download and no training: `python docs/site/pictures.py
build/docs/images`.

Every build of the site draws them anew. docs/images has all pictures, for readers of the repository;
docs/images/sources.txt has the command of each.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
# scripts with a function `draw(into)`, and what each draws
SCRIPTS = {
    "draw_architecture.py": ["architecture.png"],
    "draw_layers.py": ["layers.png", "choice.png"],
}


def draw(into: Path) -> list[Path]:
    """Draw all pictures and return their paths; an error stops the build."""
    into.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        spec = importlib.util.spec_from_file_location(Path(name).stem, DOCS / name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look themselves up
        spec.loader.exec_module(module)
        module.draw(into)
    drawn = [name for names in SCRIPTS.values() for name in names]
    return [into / name for name in drawn]


if __name__ == "__main__":
    print(*draw(Path(sys.argv[1])), sep="\n")
