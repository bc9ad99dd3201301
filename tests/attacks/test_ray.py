"""The cluster that `--engine ray` starts: no code of the working folder runs in it, and no other
program gets in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray")

COMMAND = Path(sys.executable).with_name("layerscope")
MODULES = (
    "numpy", "pyarrow", "pandas", "torch", "transformers", "safetensors", "tokenizers", "scipy",
    "sklearn", "socket", "secrets", "ray", "layerscope", "sitecustomize",
)  # fmt: skip
TRAP = """import os
with open({mark!r}, "a") as mark:
    mark.write(f"{name} in process {{os.getpid()}}\\n")
raise ImportError("this is not the {name} that was asked for")
"""
INTRUDER = """
import sys
from ray._raylet import GcsClient
try:
    client = GcsClient(address=sys.argv[1])
    client.internal_kv_put(b"intruder", b"was here", True, None)
    print("let in")
except Exception as error:
    print(f"refused: {type(error).__name__}")
"""


@dataclass
class Attacked:
    """A command that ran on a cluster of its own, and what was seen meanwhile."""

    code: int = -1
    err: str = ""
    imported: str = ""
    listening: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)


def cluster_address(processes: list[psutil.Process]) -> str | None:
    """Return the address of the cluster's head, once a process of it listens there."""
    for process in processes:
        with_gcs = [word for word in process.cmdline() if "gcs_server" in word]
        sockets = [one for one in process.net_connections("tcp") if one.status == "LISTEN"]
        if with_gcs and sockets:
            return f"127.0.0.1:{sockets[0].laddr.port}"
    return None


def attack(command: list[str], folder: Path, environment: dict[str, str]) -> Attacked:
    """Run a command in a folder of traps; while it runs, knock at its cluster."""
    mark, home = folder / "imported", folder / "home"
    home.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(TRAP.format(mark=str(mark), name=name))
    alone = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    alone |= {"HOME": str(home), **environment}
    seen = Attacked()
    with (folder / "err").open("wb") as err:
        running = subprocess.Popen(
            [str(COMMAND), *command], cwd=folder, env=alone, stdout=err, stderr=err
        )
        try:
            while running.poll() is None:
                time.sleep(0.2)
                try:
                    processes = psutil.Process(running.pid).children(recursive=True)
                    for process in [psutil.Process(running.pid), *processes]:
                        sockets = process.net_connections("inet")
                        seen.listening |= {
                            one.laddr.ip for one in sockets if one.status == "LISTEN"
                        }
                    address = cluster_address(processes)
                except psutil.Error:
                    continue
                if address is not None and not seen.answers:
                    seen.answers = knock(address, alone, folder)
        finally:
            running.kill()
            seen.code = running.wait()
    seen.err = (folder / "err").read_text(errors="replace")
    seen.imported = mark.read_text() if mark.exists() else ""
    return seen


def knock(address: str, environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Try to write to a cluster, as other programs of this machine would."""
    token = Path(environment["HOME"]) / ".ray" / "auth_token"
    ways = {
        "without a token": {"RAY_AUTH_MODE": "disabled"},
        "with another token": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
    }
    if token.exists():  # as Ray writes it: others may read it
        ways["with Ray's file"] = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token.read_text()}
    started = {
        way: subprocess.Popen(
            [sys.executable, "-P", "-c", INTRUDER, address],
            env={**environment, **settings},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for way, settings in ways.items()
    }
    answers = {}
    for way, process in started.items():
        try:
            answers[way] = process.communicate(timeout=60)[0].strip().splitlines()[-1]
        except subprocess.TimeoutExpired:
            process.kill()
            answers[way] = "refused: no answer"
    return answers


def check(seen: Attacked) -> None:
    assert seen.code == 0, seen.err[-3000:]
    assert seen.imported == ""
    assert seen.answers, "the cluster was not seen"
    assert all(answer.startswith("refused") for answer in seen.answers.values()), seen.answers
    loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert seen.listening <= loopback


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"text {i} about tea"}) for i in range(200)]
    texts.write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_profile(folder: Path, model_folder: Path) -> None:
    """Also where the environment says that Ray needs no token."""
    words = [
        *("profile", str(model_folder), "--data", "texts.jsonl", "--engine", "ray:workers=1"),
        *("--metrics", "prompt_entropy", "--out", "run"),
    ]
    check(attack(words, folder, {"RAY_AUTH_MODE": "disabled"}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("embed", "--data", "texts.jsonl", "--out", "v.parquet"),
        ("profile", "--data", "texts.jsonl", "--metrics", "prompt_entropy", "--out", "run"),
    ],
)
def test_other_commands(folder: Path, model_folder: Path, words: tuple[str, ...]) -> None:
    """With Ray's own settings."""
    command = [words[0], str(model_folder), *words[1:], "--engine", "ray:workers=2"]
    check(attack(command, folder, {}))
