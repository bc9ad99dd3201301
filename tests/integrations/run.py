"""`make integrations`: the exported folders in the programs that people serve and use embeddings
with.

    python tests/integrations/run.py                        # every program, one after another
    python tests/integrations/run.py --only langchain,onnx  # these alone, by name or its beginning
    python tests/integrations/run.py --llama-libraries FOLDER  # libllama.so that was built before: nothing is compiled

Models are cut and exported once. Every program has an environment of its own, with its packages on
top of those of this one (a `.pth` file: torch is not installed again). A program whose requirements
contradict layerscope's has nothing below it. A script in `checks/` embeds the same texts from the
folder, and says how far its vectors are from those that layerscope captures in the whole model. At
the end there is one table. A program that cannot be installed or run is in it with the reason; a
difference that is too large ends the run with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Program:
    """A program: what is installed, which script (with its words) checks which folders, and the
    largest difference allowed.

    `alone`: nothing of this environment is below that of the program; torch alone has the same
    version.
    """

    install: tuple[str, ...]
    check: str
    allowed: float = 1e-5
    otherwise: tuple[
        str, ...
    ] = ()  # installed without dependencies where the first does not install
    alone: bool = False
    folders: tuple[str, ...] = ("minilm",)


ATLAS = (
    "embedding-atlas", "duckdb", "fastapi==0.162.4", "starlette==1.10.0", "uvicorn", "uvloop", "websockets", "h11", "inquirer",
    "blessed", "jinxed", "editor", "readchar", "runs", "xmod", "wcwidth", "platformdirs", "annotated-doc", "typing-inspection",
    "opentelemetry-api", "importlib-metadata", "zipp", "cryptography", "cffi", "pycparser",
)  # fmt: skip
PROGRAMS = {
    "sentence-transformers": Program((), "sentence_transformers"),
    "sentence-transformers (oldest)": Program(
        (), "sentence_transformers", otherwise=("sentence-transformers==5.2.0",)
    ),
    "onnxruntime": Program((), "onnx"),
    "langchain": Program(("langchain-huggingface", "langchain-core"), "langchain"),
    "llama-index": Program(
        ("llama-index-core", "llama-index-embeddings-huggingface"), "llama_index"
    ),
    # its stemmer has no wheel for Linux on ARM, and dense embeddings do without: see
    # check_fastembed.py
    "fastembed": Program(("fastembed",), "fastembed", otherwise=("fastembed", "mmh3", "loguru")),
    "duckdb": Program(("duckdb",), "duckdb"),
    "lancedb": Program(("lancedb",), "lancedb"),
    # with its own dependencies pip looks for versions for more than 20 minutes: this is what it
    # takes to serve a file
    "embedding-atlas": Program((), "embedding_atlas", otherwise=ATLAS),
    "llama-cpp-python": Program(
        ("llama-cpp-python",),
        "llama_cpp",
        allowed=1e-3,
        folders=("llama-mean", "llama-last", "gemma-mean"),
    ),
    # it asks for numpy below 2 and sentence-transformers below 4, which contradicts layerscope:
    # these versions work together
    "infinity-emb": Program(
        (
            "infinity-emb[server,torch]==0.0.78",
            "sentence-transformers==3.4.1",
            "transformers==4.57.6",
            "huggingface-hub==0.36.2",
            "numpy==1.26.4",
            "scipy==1.17.1",
            "scikit-learn==1.9.1",
            "fastapi==0.162.4",
            "starlette==1.10.0",
            "uvicorn==0.32.1",
            "typer==0.12.5",
            "click==8.1.8",
        ),
        "infinity",
        folders=("minilm", "llama-mean"),
        alone=True,
    ),
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def environment(place: Path, alone: bool = False) -> Path:
    """The environment of one program, with the packages of this one below its own unless it is to
    be alone; its python."""
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    if alone:
        return python
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    (Path(own) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def last_line(text: str) -> str:
    """Why a command failed, in one line."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.startswith(("WARNING", "note:", "╰─>", "│"))
    ]
    telling = [line for line in lines if "Error" in line or line.startswith("ERROR")]
    return ((telling or lines or ["no message"])[-1])[:160]


def install(python: Path, program: Program, timeout: float, extra: dict[str, str]) -> str | None:
    """Install what a program needs; why it could not be, or None."""
    pip = [str(python), "-m", "pip", "install", "-q"]
    constraints = ROOT / "constraints.txt"
    fixed = ["-c", str(constraints)]
    if program.alone:
        fixed = [
            line
            for line in constraints.read_text(encoding="utf-8").splitlines()
            if line.startswith("torch==")
        ]
    tries = [[*pip, *fixed, *program.install]] if program.install else []
    tries += [[*pip, "--no-deps", *program.otherwise]] if program.otherwise else []
    reason = None
    for words in tries:
        surroundings = {**os.environ, **extra}
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=timeout, env=surroundings, check=False
        )
        if not ended.returncode:
            return None
        reason = reason or f"not installed: {last_line(ended.stderr)}"
    return reason


def try_program(
    name: str, program: Program, work: Path, timeout: float, extra: dict[str, str]
) -> dict[str, str | float | None]:
    """Install and run one program; `extra` are environment variables."""
    row: dict[str, str | float | None] = {
        "program": name,
        "version": None,
        "compared": None,
        "difference": None,
        "reason": None,
    }
    folder = "".join(c if c.isalnum() else "-" for c in name).strip("-")
    try:
        python = environment(work / "venvs" / folder, program.alone)
        reason = install(python, program, timeout, extra)
        script, *words = program.check.split()
        if reason:
            return {**row, "reason": reason}
        ended = subprocess.run(
            [str(python), str(HERE / "checks" / f"check_{script}.py"), str(work), *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={
                **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
                **OFFLINE,
                **extra,
            },
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**row, "reason": f"not finished within {timeout:.0f} s"}
    if ended.returncode:
        return {**row, "reason": last_line(ended.stderr)}
    return {**row, **json.loads(ended.stdout.strip().splitlines()[-1])}


def print_table(rows: list[dict[str, str | float | None]]) -> None:
    """One line per program."""
    print(
        f"\n{'program':32} {'version':10} {'largest cosine distance':24} compared, or why it was not run"
    )
    for row in rows:
        far = "–" if row["difference"] is None else f"{row['difference']:.1e}"
        print(
            f"{row['program']!s:32} {row['version'] or '–'!s:10} {far:24} {row['compared'] or row['reason']}"
        )


def main() -> int:
    """Export, try every program, print the table."""
    parser = argparse.ArgumentParser(description="the exported folders in other programs")
    parser.add_argument(
        "--only", default="", help="programs, comma-separated: " + ", ".join(PROGRAMS)
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / ".venv-integrations",
        help="where folders and environments are kept",
    )
    parser.add_argument(
        "--llama-libraries",
        type=Path,
        help="a folder with libllama built before, instead of building it",
    )
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one program")
    given = parser.parse_args()
    asked = [name.strip() for name in given.only.split(",") if name.strip()]
    found = {
        name: [name] if name in PROGRAMS else [full for full in PROGRAMS if full.startswith(name)]
        for name in asked
    }
    unknown = [name for name, full in found.items() if not full]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}. Valid: {', '.join(PROGRAMS)}")
    wanted = list(dict.fromkeys(full for names in found.values() for full in names)) or list(
        PROGRAMS
    )
    given.work.mkdir(parents=True, exist_ok=True)
    folders = dict.fromkeys(folder for name in wanted for folder in PROGRAMS[name].folders)
    subprocess.run(
        [sys.executable, str(HERE / "folders.py"), str(given.work), *folders], check=True
    )
    rows = []
    built = {}
    if given.llama_libraries:
        path = str(given.llama_libraries.resolve())
        built = {
            "CMAKE_ARGS": "-DLLAMA_BUILD=OFF",
            "LLAMA_CPP_LIB_PATH": path,
            "LD_LIBRARY_PATH": path,
        }
    for name in wanted:
        start = time.monotonic()
        extra = built if name == "llama-cpp-python" else {}
        rows.append(try_program(name, PROGRAMS[name], given.work, given.timeout, extra))
        print(json.dumps({**rows[-1], "seconds": round(time.monotonic() - start)}), flush=True)
    print_table(rows)
    (given.work / "table.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    far = [
        row
        for row in rows
        if row["difference"] is not None
        and not float(row["difference"]) <= PROGRAMS[str(row["program"])].allowed
    ]
    for row in far:
        print(f"{row['program']}: {row['difference']} is more than allowed", file=sys.stderr)
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
