"""A package from outside, as pip would leave it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from layerscope.core.plugins import Registry


def install(
    module: str,
    text: str,
    name: str,
    registry: Registry[Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Install a module whose attribute `name` is an entry point of the registry, for one test."""
    info = folder / "site" / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.group}]\n{name.lower()} = {module}:{name}\n"
    )
    (folder / "site" / f"{module}.py").write_text(text)
    known = registry.all()  # before the package is there
    monkeypatch.delitem(sys.modules, module, raising=False)  # another test's of that name
    monkeypatch.syspath_prepend(str(folder / "site"))
    monkeypatch.setattr(registry, "_things", known)
    monkeypatch.setattr(registry, "_broken", {})
    monkeypatch.setattr(registry, "_loaded", False)
