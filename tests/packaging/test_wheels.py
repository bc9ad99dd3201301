"""The wheels as users install them: the core one is small, the zoo is found by its entry point, the
kernels stand alone."""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
import tomllib
import zipfile
from importlib.metadata import PathDistribution, distributions, version
from pathlib import Path
from typing import Any

import pytest

from layerscope.version import VERSION
from tests.forking import run_python
from tests.packaging.audit import verdict
from tests.packaging.release import lines, release
from tests.packaging.sbom import bill, pins, plain, unpinned

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this repository, built offline from a copy, so that no build folder is left
    in the tree."""
    into = tmp_path_factory.mktemp("wheels")
    build = "import os, sys; from setuptools import build_meta; os.chdir(sys.argv[1]); build_meta.build_wheel(sys.argv[2])"
    beside = {
        name: ROOT / "packages" / f"layerscope-{name}" for name in ("zoo", "gpu", "paper", "media")
    }
    for name, source in {"layerscope": ROOT, **beside}.items():
        copy = tmp_path_factory.mktemp(name)
        for part in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(source / part, copy)
        shutil.copytree(
            source / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
        ended = run_python(build, str(copy), str(into))
        assert ended.returncode == 0, ended.stderr
    return into


def test_the_core_wheel_is_under_3_mb(wheels: Path) -> None:
    (wheel,) = wheels.glob("layerscope-*.whl")
    assert wheel.stat().st_size < 3e6


def test_the_zoo_is_found_once_installed(wheels: Path, tmp_path: Path) -> None:
    (wheel,) = wheels.glob("layerscope_zoo-*.whl")
    with zipfile.ZipFile(wheel) as packed:  # what an installer does with a wheel of plain files
        packed.extractall(tmp_path / "site")
    ask = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import json; from layerscope.models import catalogue; from layerscope.extras import ZOO_NAMES; assert set(catalogue()) == set(ZOO_NAMES['model']);"
        "print(json.dumps({name: [entry.is_cached(), str(entry.path)] for name, entry in catalogue().items()}))"
    )
    result = run_python(ask, str(tmp_path / "site"), without=["layerscope", "layerscope_zoo"])
    assert result.returncode == 0, result.stderr
    found = {
        name: tuple(told)
        for name, told in json.loads(result.stdout).items()
        if name.startswith(("controlled-", "vision-"))
    }
    assert len(found) == 6
    assert all(cached and folder.startswith(str(tmp_path)) for cached, folder in found.values())


def test_the_kernels_come_with_their_emulator_and_without_layerscope(
    wheels: Path, tmp_path: Path
) -> None:
    (wheel,) = wheels.glob("layerscope_gpu-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    ask = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "sys.modules['layerscope'] = None;"
        "import layerscope_gpu, torch; from layerscope_gpu import emulator; from pathlib import Path;"
        "assert layerscope_gpu.__file__.startswith(sys.argv[1]), layerscope_gpu.__file__;"
        "assert layerscope_gpu.eigvalsh(torch.eye(2)).tolist() == [1.0, 1.0];"
        "print(sorted(path.name for path in Path(emulator.__file__).parent.iterdir() if path.suffix in ('.cpp', '.hpp')))"
    )
    result = run_python(ask, str(tmp_path / "site"), without=["layerscope", "layerscope_gpu"])
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "['runtime.cpp', 'shim.hpp']"


def test_the_papers_tables_and_command_come_with_its_wheel(wheels: Path) -> None:
    (wheel,) = wheels.glob("layerscope_paper-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (points,) = (packed.read(name).decode() for name in names if name.endswith("points.txt"))
    assert {
        "layerscope_paper/atlas/data/scores.parquet",
        "layerscope_paper/sweeps/recipes/paper.yaml",
    } <= {*names}
    assert "layerscope-paper = layerscope_paper.cli:main" in points


def test_one_version_everywhere(wheels: Path) -> None:
    (wheel,) = wheels.glob("layerscope-*.whl")
    sections = re.findall(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    cited = re.search(
        r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert cited is not None
    assert sections
    released = [section for section in sections if section != "Unreleased"][:1]
    assert {VERSION, wheel.name.split("-")[1], cited[1], *released} == {VERSION}


def test_a_release_changes_three_lines(tmp_path: Path) -> None:
    names = list(lines("9.8.7", "2030-01-02"))
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if "## Unreleased\n" not in text:  # right after a release
        changelog.write_text(text.replace("\n## ", "\n## Unreleased\n\n## ", 1), encoding="utf-8")
    release(tmp_path, "9.8.7", "2030-01-02")
    assert 'VERSION = "9.8.7"' in (tmp_path / names[0]).read_text(encoding="utf-8")
    assert changelog.read_text(encoding="utf-8").startswith(
        "# Changelog\n\n## 9.8.7 (2030-01-02)\n"
    )
    assert "version: 9.8.7\ndate-released: 2030-01-02\n" in (tmp_path / "CITATION.cff").read_text(
        encoding="utf-8"
    )
    before = {name: (tmp_path / name).read_bytes() for name in names}
    with pytest.raises(SystemExit, match=r"CHANGELOG.md has 0 lines.*Nothing was changed"):
        release(tmp_path, "9.9.0", "2030-01-02")  # there is nothing that is not released
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    with pytest.raises(SystemExit, match="is no version"):
        release(tmp_path, "next", "2030-01-02")


def test_the_address_of_the_repository_has_one_home() -> None:
    """It is assumed until something is published there: what is wrong with it must be mended in one
    place."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "urls"
    ]["Source"]
    place = address.removeprefix("https://")
    files = [*ROOT.glob("*.*"), *(ROOT / ".github").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]
    files += [
        path for folder in ("src", "packages", "examples") for path in (ROOT / folder).rglob("*.*")
    ]
    texts = {".py", ".toml", ".md", ".cff", ".yml", ".yaml", ".html"}
    naming = [
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.suffix in texts
        and ".egg-info" not in str(path)
        and place in path.read_text(encoding="utf-8")
    ]
    assert naming == ["pyproject.toml"]


def test_actions_are_pinned_by_their_commit() -> None:
    used = [
        line.split("uses:")[1].strip()
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert used
    assert [
        one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", one)
    ] == []


def test_every_dependency_is_pinned_for_the_set_up() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [
        *project["dependencies"],
        *(need for needs in project["optional-dependencies"].values() for need in needs),
    ]
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    names = {plain(re.split(r"[^\w.-]", need, maxsplit=1)[0]) for need in asked}
    beside = {name for name in names - set(pinned) if not name.startswith("layerscope")}
    assert beside == set()


class Installed(PathDistribution):
    """A package as a test wants it."""

    def __init__(self, name: str, version: str, *needs: str) -> None:
        self.told = {"Name": name}, version, list(needs)

    @property
    def metadata(self) -> Any:
        return self.told[0]

    @property
    def version(self) -> str:
        return self.told[1]

    @property
    def requires(self) -> list[str]:
        return self.told[2]


def test_what_is_installed_and_not_pinned_is_found() -> None:
    there = [
        Installed("Torch", "2.1+cpu", "nvidia-x==12.1; sys_platform == 'linux'", "idna>=2"),
        Installed("nvidia_x", "12.1"),
    ]
    assert unpinned("torch==2.1\n", there) == []
    assert unpinned("torch==2.2\n", there) == ["torch 2.1 (pinned: 2.2)"]
    assert unpinned("torch==2.1\n", [*there, Installed("idna", "3.0")]) == [
        "idna 3.0 (pinned: no version)"
    ]


def test_everything_in_this_environment_is_pinned() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if version("torch").split("+")[0] != pins(constraints)["torch"]:
        pytest.skip("an environment with other versions than the set-up's")
    known = set(pins(constraints))
    installed = distributions(
        path=list({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    )  # not what ray brings along
    assert [one for one in unpinned(constraints, installed) if one.split()[0] not in known] == []


def test_an_audit_that_asked_nobody_does_not_say_that_all_is_well() -> None:
    skipped = {"name": "a", "skip_reason": "Dependency not found on PyPI"}
    fine, bad = (
        {"name": "b", "version": "1", "vulns": []},
        {"name": "c", "version": "1", "vulns": [{"id": "PYSEC-1"}]},
    )
    code, (line,) = verdict({"dependencies": [skipped]})
    assert (code, "nothing was checked" in line) == (2, True)
    code, (line,) = verdict({"dependencies": [skipped, fine]})
    assert (code, line) == (
        0,
        "audit: 0 known vulnerabilities in 1 of 2 packages; not known to the advisories: a",
    )
    assert verdict({"dependencies": [fine, bad]})[0] == 1


def test_the_bill_of_materials_lists_what_is_installed() -> None:
    made = bill()
    parts = {part["name"]: part for part in made["components"]}
    assert parts["torch"]["purl"].startswith("pkg:pypi/torch@")
    assert made["metadata"]["component"]["version"] == VERSION
    (own,) = [one for one in made["dependencies"] if one["ref"] == f"pkg:pypi/layerscope@{VERSION}"]
    assert parts["transformers"]["bom-ref"] in own["dependsOn"]
