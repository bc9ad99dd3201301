"""The wheels as users install them: the core one is small, and the zoo's models are found through its entry point."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from layerscope.version import VERSION

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both packages of this repository, built offline from a copy, so that no build folder is left in the tree."""
    into = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    for name, source in {"layerscope": ROOT, "zoo": ROOT / "packages" / "layerscope-zoo"}.items():
        copy = tmp_path_factory.mktemp(name)
        for part in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(source / part, copy)
        shutil.copytree(source / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        subprocess.run([*command, "--no-build-isolation", "--wheel-dir", str(into), str(copy)], check=True)
    return into


def test_the_core_wheel_is_under_3_mb(wheels: Path) -> None:
    (wheel,) = wheels.glob("layerscope-*.whl")
    assert wheel.stat().st_size < 3e6


def test_the_zoo_is_found_once_installed(wheels: Path, tmp_path: Path) -> None:
    (wheel,) = wheels.glob("layerscope_zoo-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    ask = (
        "import json; from layerscope.models import catalogue, is_cached;"
        "print(json.dumps({name: [is_cached(name), str(entry.path)] for name, entry in catalogue().items()}))"
    )
    path = os.pathsep.join([str(tmp_path / "site"), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, env=environment)
    found = {name: tuple(told) for name, told in json.loads(result.stdout).items() if name.startswith(("controlled-", "vision-"))}
    assert len(found) == 6
    assert all(cached and folder.startswith(str(tmp_path)) for cached, folder in found.values())


def test_one_version_everywhere(wheels: Path) -> None:
    (wheel,) = wheels.glob("layerscope-*.whl")
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    released = [section for section in sections if section != "Unreleased"]
    assert {VERSION, wheel.name.split("-")[1], released[0], cited[1]} == {VERSION}
