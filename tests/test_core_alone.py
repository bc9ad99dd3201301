"""The core works without any of its companion packages: it imports, profiles and improves a folder
on this machine, and names the extra where something of theirs is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layerscope.extras import PACKAGES
from tests.forking import run_python
from tests.improving.test_improve import some_texts
from tests.tiny import build_tiny, tiny_tokenizer

MODULES = sorted(name.replace("-", "_") for name in PACKAGES.values())
NAMES = ["minilm-l6", "lee", "smollm2-135m", "LeeSimilarity", "gguf"]
ALONE = """
import importlib.metadata, json, sys

BLOCKED = set(json.loads(sys.argv[1]))

class Blocker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker)
installed = importlib.metadata.entry_points

def entry_points(**named):
    found = installed(**named)
    if not named:
        return found
    return type(found)(point for point in found if point.module.partition(".")[0] not in BLOCKED)

importlib.metadata.entry_points = entry_points
from layerscope.cli import main

for words in json.loads(sys.argv[2]):
    sys.argv = ["layerscope", *words]
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    sys.stdout.flush()
    print("ended", code, file=sys.stderr)
print(sorted(set(name.partition(".")[0] for name in sys.modules) & BLOCKED))
"""


def test_the_core_profiles_and_improves_alone(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    judge = tmp_path / "judge"
    build_tiny("bert").save_pretrained(judge)
    tiny_tokenizer(encoder=True).save_pretrained(judge)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(some_texts(40)), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    model, data = str(model_folder), str(texts)
    improve = ["improve", model, "--data", data, "--max-length", "64"]
    commands = [
        ["list", "models"],
        ["profile", model, "-d", data, "-m", "prompt_entropy", "--out", "profile"],
        [*improve, "--templates", "one-word", "--judge", str(judge), "--out", "better"],
        [*improve, "--out", "other"],
        ["profile", model, "-m", "prompt_entropy", "--out", "lee"],
        ["profile", "smollm2-135m", "-d", data, "--out", "named"],
        ["evaluate", model, "--tasks", "small", "--out", "scores"],
        ["export", model, "--layer", "1", "--format", "gguf", "--out", "file"],
    ]
    done = run_python(
        ALONE,
        json.dumps(MODULES),
        json.dumps(commands),
        cwd=tmp_path,
        without=["layerscope", *MODULES],
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    outputs = [part.strip() for part in done.stderr.split("ended ")]
    codes = [int(part[0]) for part in outputs[1:]]
    assert codes == [0, 0, 0, 1, 1, 1, 1, 1], done.stderr
    assert (tmp_path / "profile" / "profile.csv").is_file()
    assert (tmp_path / "better" / "model.safetensors").is_file()
    errors = [part[1:].strip() for part in outputs]
    for error, name in zip(errors[3:8], NAMES, strict=True):
        assert len(error.splitlines()) == 1, error
        assert name in error
        assert "`zoo`" in error
        assert "pip install" in error
