"""`make release-check`: what a user installs works, from wheels in empty environments, with and
without extras.

    python tests/packaging/release_check.py                        # everything
    python tests/packaging/release_check.py --extras report,gguf   # these extras alone; `none`: only the core
    python tests/packaging/release_check.py --work /some/folder    # the environments go there, and are removed at the end

1. Builds sdist and wheel of layerscope, layerscope-zoo, layerscope-gpu, layerscope-paper and layerscope-media; the wheels must be those that the sdists give.
2. Compares the version: one number in `version.py`, the wheel, the changelog's first section (`Unreleased` between releases).
3. Installs the core wheel into an empty environment and runs the quickstart on a tiny model of the zoo. There, what an extra is
   for must say which one to install. `build/sbom.json` lists what was installed (CycloneDX);
   constraints.txt must pin all of it.
4. Installs each extra alone and runs what it is for. The environment is a copy of the core's, so that torch is unpacked once;
   `--fresh` begins with an empty one each time. What it brings must be pinned, too;
   `build/sbom-EXTRA.json` lists it.
5. Known vulnerabilities of what is pinned, where the advisories can be had.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BESIDE = tuple(
    ROOT / "packages" / f"layerscope-{name}" for name in ("zoo", "gpu", "paper", "media")
)
UNRELEASED = "Unreleased"
PYTREC = "pytrec-eval-terrier"
TEXTS = "\n".join(
    f"the {what} was {how} on day {day}"
    for what in ("film", "plot", "score")
    for how in ("fine", "dull")
    for day in range(6)
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
# A llama of two blocks, with a tokenizer of single bytes. Without `gguf` an empty file will do: the
# extra is asked for first.
GGUF = """
from pathlib import Path
import layerscope
try:
    import gguf
    import numpy as np
except ImportError:
    Path("tiny.gguf").write_bytes(b"GGUF")
else:
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    words = [*bytes_to_unicode().values(), "th", "<end>"]
    width, inner, random = 32, 64, np.random.default_rng(0)
    file = gguf.GGUFWriter("tiny.gguf", "llama")
    for setting, value in {
        "block_count": 2, "context_length": 64, "embedding_length": width, "feed_forward_length": inner, "head_count": 4,
        "head_count_kv": 4, "layer_norm_rms_eps": 1e-5, "rope_dimension_count": 8, "rope_freq_base": 1e4,
        "vocab_size": len(words), "tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": words,
        "token_merges": ["t h"], "token_types": [1] * 257 + [3], "eos_token_id": 257,
    }.items():
        getattr(file, "add_" + setting)(value)
    shapes = {"token_embd": (len(words), width)}
    for block in range(2):
        shapes.update({f"blk.{block}.attn_{part}": (width, width) for part in ("q", "k", "v", "output")})
        shapes.update({f"blk.{block}.ffn_{part}": (inner, width) for part in ("gate", "up")})
        shapes[f"blk.{block}.ffn_down"] = (width, inner)
        shapes.update({f"blk.{block}.{part}_norm": (width,) for part in ("attn", "ffn")})
    for name, shape in {**shapes, "output_norm": (width,)}.items():
        file.add_tensor(name + ".weight", (random.standard_normal(shape) * 0.3).astype(np.float32))
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
table = layerscope.profile("tiny.gguf", "texts.txt", metrics="prompt_entropy", max_length=32, progress=False).table
assert sorted(set(table["layer"])) == [0, 1, 2] and table["value"].notna().all(), table
"""
_PROFILE = "import layerscope; layerscope.profile('controlled-ar', 'texts.txt', max_length=32, progress=False, "
# What each extra brings, used once.
EXTRAS = {
    "gguf": GGUF,
    "report": "import layerscope; layerscope.load_run('runs/a').plot().savefig('a.png')",
    "export": (
        "import layerscope; layerscope.export('controlled-ar', 6, out='cut', max_length=32);"
        "from sentence_transformers import SentenceTransformer;"
        "assert SentenceTransformer('cut').encode(['a film']).shape == (1, 128)"
    ),
    "onnx": (
        "import layerscope; layerscope.export('controlled-ar', 3, out='graph', max_length=32, formats=['onnx']);"
        "import onnxruntime; onnxruntime.InferenceSession('graph/onnx/model.onnx')"
    ),
    "gpu": "import torch, layerscope_gpu; assert layerscope_gpu.eigvalsh(torch.eye(2)).tolist() == [1.0, 1.0]",
    "mteb": "from layerscope.evaluation.tasks.mteb_tasks import text_tasks; assert len(text_tasks()) > 100",
    "hub": "import datasets",
    "peft": "from layerscope.extras import require; require('adapters')",
    "device-map": _PROFILE + "metrics='prompt_entropy', device_map='cpu')",
    "media": (
        "import layerscope; layerscope.profile('vision-ar', 'digits', limit=20, metrics=['prompt_entropy'], progress=False)"
    ),
    "ray": _PROFILE + "metrics='prompt_entropy', engine='ray', workers=1)",
    "train": "from sentence_transformers import SentenceTransformerTrainer; import layerscope.training.distill",
    "xlsx": "from layerscope.extras import require; require('xlsx'); import python_calamine",
    "factorial": "import statsmodels, mteb",
    "augment": _PROFILE + "metrics='infonce', augmenter='nlpaug')",
}


def run(*words: object, where: Path | None = None, clean: bool = False) -> str:
    """Run a command; its output is shown where it fails."""
    environment = dict(os.environ)
    if clean:
        environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        [str(word) for word in words],
        cwd=where,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(
            f"release-check: {' '.join(map(str, words))}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
        )
    return ended.stdout


def build(into: Path) -> None:
    """Source distributions, and the wheels from them, so that a wheel holds nothing that the sdist
    lacks."""
    for source in (ROOT, *BESIDE):
        copy = into / "source" / source.name
        shutil.copytree(
            source,
            copy,
            ignore=shutil.ignore_patterns(
                ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", "demo", "runs"
            ),
        )
        code = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(into)!r}))"
        name = run(sys.executable, "-c", code, where=copy, clean=True).strip().splitlines()[-1]
        run(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            into,
            into / name,
            clean=True,
        )
        print(f"built {name} and its wheel", flush=True)


def check_versions(into: Path) -> None:
    """One version everywhere."""
    version = re.search(
        r'VERSION = "([^"]+)"', (ROOT / "src/layerscope/version.py").read_text(encoding="utf-8")
    )
    assert version is not None
    (wheel,) = into.glob("layerscope-*.whl")
    first = re.search(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert first is not None
    told = {"version.py": version[1], "wheel": wheel.name.split("-")[1], "CHANGELOG.md": first[1]}
    if (
        told["CHANGELOG.md"] == UNRELEASED
    ):  # between releases; a release gives the section its number
        print(f"the changelog's first section is {UNRELEASED}: no release yet", flush=True)
        del told["CHANGELOG.md"]
    if len(set(told.values())) > 1:
        raise SystemExit(f"release-check: versions differ: {told}")
    names = zipfile.ZipFile(wheel).namelist()
    extra = [
        name
        for name in names
        if not name.startswith(("layerscope/", f"layerscope-{version[1]}.dist-info/"))
    ]
    assert not extra, f"the wheel holds files of nobody: {extra[:5]}"
    assert wheel.stat().st_size < 3e6
    print(
        f"version {version[1]} everywhere; wheel {wheel.stat().st_size / 1e6:.1f} MB, {len(names)} files",
        flush=True,
    )


def environment(place: Path) -> Path:
    """An empty environment; its python."""
    venv.create(place, with_pip=True, clear=True)
    return python_of(place)


def python_of(place: Path) -> Path:
    """The interpreter of an environment."""
    return place / ("Scripts" if os.name == "nt" else "bin") / "python"


def copied(source: Path, place: Path) -> Path:
    """A copy of an environment; its python. Files are linked where that is possible: pip replaces
    files, it never edits them."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        shutil.copytree(source, place, symlinks=True, copy_function=os.link)
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(source, place, symlinks=True)
    return python_of(place)


def install(python: Path, wheels: Path, extra: str | None) -> None:
    """layerscope and the zoo, and what an extra asks for, by the versions that the repository is
    tested with."""
    (core,) = wheels.glob("layerscope-*.whl")
    beside = [
        *wheels.glob("layerscope_zoo-*.whl"),
        *wheels.glob("layerscope_media-*.whl"),  # the zoo has image models
        *(wheels.glob("layerscope_gpu-*.whl") if extra == "gpu" else ()),
    ]
    wanted = f"{core}[{extra}]" if extra else str(core)
    cpu = (
        ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        if os.environ.get("LAYERSCOPE_CPU_TORCH")
        else []
    )
    pip = (python, "-m", "pip", "install", "-q")
    if (
        extra == "mteb"
    ):  # one of its dependencies has no wheel for some machines (Linux on ARM): as in the Makefile
        tried = subprocess.run(
            [*map(str, pip), "-c", str(ROOT / "constraints.txt"), "--only-binary", ":all:", PYTREC],
            capture_output=True,
            check=False,
        )
        if tried.returncode:
            run(*pip, ROOT / "packages" / "pytrec-eval-pure", clean=True)
            print(
                f"{PYTREC} has no wheel here: packages/pytrec-eval-pure stands in for it",
                flush=True,
            )
    run(*pip, "-c", ROOT / "constraints.txt", *cpu, wanted, *beside, clean=True)


def bill_of(python: Path, name: str, where: Path) -> set[str]:
    """Write what is installed into build/; the names. Ends where something of it is not pinned."""
    target = ROOT / "build" / name
    run(
        python,
        ROOT / "tests" / "packaging" / "sbom.py",
        target,
        ROOT / "constraints.txt",
        where=where,
        clean=True,
    )
    return {part["name"] for part in json.loads(target.read_text(encoding="utf-8"))["components"]}


def audit(where: Path) -> str:
    """What is known against the pinned versions. Ends where a package has a known vulnerability."""
    python = environment(where / "audit")
    run(python, "-m", "pip", "install", "-q", "pip-audit", clean=True)
    words = [
        sys.executable,
        ROOT / "tests" / "packaging" / "audit.py",
        python.with_name("pip-audit"),
    ]
    ended = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if ended.returncode not in (0, 2):  # 2: no advisories can be had here
        raise SystemExit(f"release-check: {ended.stdout}{ended.stderr[-2000:]}")
    return ended.stdout.strip()


def check_messages(python: Path, where: Path, extras: list[str]) -> None:
    """Without an extra, what it is for ends with one line that names it."""
    for extra in extras:
        if extra == "gpu" or "layerscope" not in EXTRAS[extra]:  # all works without the kernels
            continue
        ended = subprocess.run(
            [str(python), "-c", EXTRAS[extra]],
            cwd=where,
            capture_output=True,
            text=True,
            check=False,
        )
        last = ended.stderr.strip().splitlines()[-1:] or [""]
        told = re.search(r"MissingExtraError: .*\[([\w-]+)\]", last[0])
        # an ONNX export asks for the extra `export` first; `onnx` includes it
        if (
            ended.returncode == 0
            or told is None
            or told[1] not in (extra, "export" if extra == "onnx" else extra)
        ):
            raise SystemExit(
                f"release-check: without the extra {extra} it says:\n{ended.stderr[-2000:]}"
            )


class Clock:
    """Prints what was done, and how long it took."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def done(self, what: str) -> None:
        """A part has ended."""
        now = time.monotonic()
        print(f"{what} ({now - self.start:.0f} s)", flush=True)
        self.start = now


def main() -> None:
    """All steps, or those that were asked for."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    all_extras = [name for name in known if name not in ("all", "dev")]
    assert set(all_extras) == set(EXTRAS), (
        f"extras without a step, or steps without an extra: {set(all_extras) ^ set(EXTRAS)}"
    )
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--extras", default=",".join(all_extras))
    parser.add_argument(
        "--work", type=Path, help="where environments are made; they are removed at the end"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin with an empty environment for each extra"
    )
    given = parser.parse_args()
    asked = [name for name in given.extras.split(",") if name not in ("", "none")]
    assert set(asked) <= set(all_extras), f"unknown extras: {set(asked) - set(all_extras)}"
    if given.work:
        given.work.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="release-check-", dir=given.work) as scratch:
        place = Path(scratch)
        wheels = place / "wheels"
        wheels.mkdir()
        build(wheels)
        check_versions(wheels)
        clock.done("both packages are built")
        (place / "texts.txt").write_text(TEXTS, encoding="utf-8")
        python = environment(place / "core")
        install(python, wheels, None)
        clock.done("core: installed")
        listed = bill_of(python, "sbom.json", place)
        assert {"torch", "transformers", "layerscope-zoo"} <= listed
        clock.done(f"core: build/sbom.json lists {len(listed)} packages, all pinned")
        run(python, "-c", CORE, where=place, clean=True)
        told = run(python, "-m", "layerscope", "doctor", where=place, clean=True)
        assert "layerscope" in told
        clock.done("core alone: profile, select, report and doctor work")
        check_messages(python, place, asked)
        clock.done("core alone: what needs an extra names it")
        for extra in asked:
            python = (
                environment(place / "extra")
                if given.fresh
                else copied(place / "core", place / "extra")
            )
            install(python, wheels, extra)
            listed |= bill_of(python, f"sbom-{extra}.json", place)
            run(python, "-c", EXTRAS[extra], where=place, clean=True)
            clock.done(f"extra {extra}: works alone")
        print(f"{len(listed)} packages were installed, all pinned", flush=True)
        print(audit(place), flush=True)
    print("release-check: all well")


if __name__ == "__main__":
    main()
