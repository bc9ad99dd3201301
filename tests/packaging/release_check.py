"""`make release-check`: what a user installs works, from wheels in empty environments, with and without extras.

    python tests/packaging/release_check.py                        # everything
    python tests/packaging/release_check.py --extras report,gguf   # these extras alone; `none`: only the core

1. Builds sdist and wheel of layerscope and layerscope-zoo; the wheels must be those that the sdists give.
2. Compares the version: one number in `version.py`, the wheel, the changelog's first section (`Unreleased` between releases).
3. Installs the core wheel into an empty environment and runs the quickstart on a tiny model of the zoo.
4. Installs each extra alone and runs what it is for. A step whose extra is missing must say which one to install.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "packages" / "layerscope-zoo"
UNRELEASED = "Unreleased"
TEXTS = "\n".join(
    f"the {what} was {how} on day {day}" for what in ("film", "plot", "score") for how in ("fine", "dull") for day in range(6)
)

CORE = """
import sys
from pathlib import Path
import layerscope
assert "site-packages" in layerscope.__file__, layerscope.__file__
metrics = ["prompt_entropy", "sink_ratio"]
run = layerscope.profile("controlled-ar", "texts.txt", metrics=metrics, out="runs/a", max_length=32, progress=False)
assert layerscope.load_run("runs/a").table.equals(run.table)
choice = layerscope.select(run)
page = layerscope.write_report([run, choice], "report.html")
assert page.stat().st_size > 10_000 and "prompt_entropy" in page.read_text(encoding="utf-8")
"""
# What each extra brings, used once. An extra without a line is only installed and imported by name.
EXTRAS = {
    "gguf": "from layerscope.models.catalogue import require_gguf; require_gguf()",
    "report": "import layerscope; layerscope.load_run('runs/a').plot().savefig('a.png')",
    "export": (
        "import layerscope; from sentence_transformers import SentenceTransformer;"
        "layerscope.export('controlled-ar', 6, out='cut', max_length=32);"
        "assert SentenceTransformer('cut').encode(['a film']).shape == (1, 128)"
    ),
    "onnx": "import onnxruntime, onnx",
    "mteb": "import mteb",
    "hub": "import datasets",
    "peft": "import peft",
    "device-map": "import accelerate",
    "vision": (
        "import layerscope; layerscope.profile('vision-ar', 'digits', limit=20, metrics=['prompt_entropy'], progress=False)"
    ),
    "ray": "import ray",
    "training": "import tensorboard, wandb",
    "augment": "import nlpaug",
}


def run(*words: object, where: Path | None = None, clean: bool = False) -> str:
    """Run a command; its output is shown where it fails."""
    environment = dict(os.environ)
    if clean:
        environment.pop("PYTHONPATH", None)
    ended = subprocess.run([str(word) for word in words], cwd=where, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(f"release-check: {' '.join(map(str, words))}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
    return ended.stdout


def build(into: Path) -> None:
    """Source distributions, and the wheels from them, so that a wheel holds nothing that the sdist lacks."""
    for source in (ROOT, ZOO):
        copy = into / "source" / source.name
        shutil.copytree(
            source,
            copy,
            ignore=shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", "demo", "runs"),
        )
        code = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(into)!r}))"
        name = run(sys.executable, "-c", code, where=copy, clean=True).strip().splitlines()[-1]
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", into, into / name, clean=True)
        print(f"built {name} and its wheel", flush=True)


def check_versions(into: Path) -> None:
    """One version everywhere."""
    version = re.search(r'VERSION = "([^"]+)"', (ROOT / "src/layerscope/version.py").read_text(encoding="utf-8"))
    assert version is not None
    (wheel,) = into.glob("layerscope-*.whl")
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first is not None
    told = {"version.py": version[1], "wheel": wheel.name.split("-")[1], "CHANGELOG.md": first[1]}
    if told["CHANGELOG.md"] == UNRELEASED:  # between releases; a release gives the section its number
        print(f"the changelog's first section is {UNRELEASED}: no release yet", flush=True)
        del told["CHANGELOG.md"]
    if len(set(told.values())) > 1:
        raise SystemExit(f"release-check: versions differ: {told}")
    names = zipfile.ZipFile(wheel).namelist()
    extra = [name for name in names if not name.startswith(("layerscope/", f"layerscope-{version[1]}.dist-info/"))]
    assert not extra, f"the wheel holds files of nobody: {extra[:5]}"
    assert wheel.stat().st_size < 3e6
    print(f"version {version[1]} everywhere; wheel {wheel.stat().st_size / 1e6:.1f} MB, {len(names)} files", flush=True)


def environment(place: Path) -> Path:
    """An empty environment; its python."""
    venv.create(place, with_pip=True, clear=True)
    return place / ("Scripts" if os.name == "nt" else "bin") / "python"


def install(python: Path, wheels: Path, extra: str | None) -> None:
    """Both wheels, and what an extra asks for, by the versions that the repository is tested with."""
    (core,) = wheels.glob("layerscope-*.whl")
    (zoo,) = wheels.glob("layerscope_zoo-*.whl")
    wanted = f"{core}[{extra}]" if extra else str(core)
    cpu = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"] if os.environ.get("LAYERSCOPE_CPU_TORCH") else []
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *cpu, wanted, zoo, clean=True)


def main() -> None:
    """All steps, or those that were asked for."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extras", default=",".join(name for name in known if name not in ("all", "dev")))
    asked = [name for name in parser.parse_args().extras.split(",") if name not in ("", "none")]
    assert set(asked) <= set(known), f"unknown extras: {set(asked) - set(known)}"
    with tempfile.TemporaryDirectory(prefix="release-check-") as scratch:
        place = Path(scratch)
        wheels = place / "wheels"
        wheels.mkdir()
        build(wheels)
        check_versions(wheels)
        (place / "texts.txt").write_text(TEXTS, encoding="utf-8")
        python = environment(place / "core")
        install(python, wheels, None)
        run(python, "-c", CORE, where=place, clean=True)
        told = run(python, "-m", "layerscope", "doctor", where=place, clean=True)
        assert "layerscope" in told
        print("core alone: installed, profile, select and report work", flush=True)
        for extra in asked:
            python = environment(place / "extra")
            install(python, wheels, extra)
            run(python, "-c", EXTRAS.get(extra, "import layerscope"), where=place, clean=True)
            print(f"extra {extra}: works alone", flush=True)
    print("release-check: all well")


if __name__ == "__main__":
    main()
