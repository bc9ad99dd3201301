"""The page on adding things is a package from outside: its files and entry points are installed as
pip would, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "extend.md"
USE = """
import json, sys
from pathlib import Path
import layerscope
from layerscope.exporting import export
from my_package.deepest import Deepest
from layerscope.exporting.formats import FORMATS
from tests.docs.sandbox import TEXTS
from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

out = {}
run = layerscope.profile(tiny_model(), TEXTS[:6], metrics=["token_spread"], progress=False)
out["metric"] = bool((run.curve("token_spread", sink="drop")["value"] > 0).all())
module = build_tiny("llama")
module.config.model_type = "mystery"
model = layerscope.wrap(module, tiny_tokenizer(), name="mystery-model")
inside = layerscope.profile(model, TEXTS[:6], metrics=["prompt_entropy"], sites=["block.*.attn"], progress=False)
out["family"] = [model.identity["family"], sorted(inside.table["site"].unique())[0]]

words = [f"{a} {b} {c}" for a in "red green blue".split() for b in "sea sky".split() for c in "one two three four".split()]
better = layerscope.improve(tiny_model("llama"), words, judge=Deepest(), templates=["one-word"], max_length=64, progress=False)
out["judge"] = [better.manifest["judge"], sorted(set(better.table["score"]))]
scored = layerscope.evaluate(tiny_model(), "WordPairs", store=Path("store"), scoring_workers=0, progress=False)
out["task"] = [scored.failed, len(scored.scores)]
out["export"] = "summary" in FORMATS
out["template"] = "in-short/last" in layerscope.improve(
    tiny_model(), TEXTS[:60], judge="none", templates=["in-short"], max_length=64, progress=False
).table["readout"].str.cat(sep=" ")
print("RESULT" + json.dumps(out))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The page's files as an installed package."""
    blocks = blocks_of(PAGE)
    files = {block.title: block.text for block in blocks if block.title}
    assert len(files) == 6
    for name, text in files.items():
        target = tmp_path / "site" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n", encoding="utf-8")
    (tmp_path / "site" / "my_package" / "__init__.py").touch()
    info = tmp_path / "site" / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n", encoding="utf-8"
    )
    points = []
    for block in blocks:
        if block.language == "toml":
            for group, entries in tomllib.loads(block.text)["project"]["entry-points"].items():
                points += [
                    f"[{group}]",
                    *(f"{name} = {target}" for name, target in entries.items()),
                ]
    (info / "entry_points.txt").write_text("\n".join(points) + "\n", encoding="utf-8")
    return tmp_path / "site"


@pytest.mark.slow
def test_everything_on_the_page_works_from_outside(site: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(site), str(ROOT), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path, "LAYERSCOPE_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-c", USE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert "RESULT" in ended.stdout, ended.stderr
    found = json.loads(ended.stdout.split("RESULT", 1)[1])
    assert found["metric"] is True
    assert found["family"] == ["mystery", "block.0.attn"]
    assert found["judge"] == ["deepest", [0.0, 1.0, 2.0, 3.0]]
    assert found["task"] == [[], 4]
    assert found["export"] is True
    assert found["template"] is True
