"""Image models on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import Cli, assert_refused
from tiny_images import build

from layerscope.profiling import Profile

FAST = ("--views", "2", "--option", "permutations=2", "--device", "cpu", "--limit", "12")


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers as hf

    folder = tmp_path_factory.mktemp("models") / "tiny-vit"
    module: Any = build("vit")
    module.save_pretrained(folder)
    hf.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def test_a_profile_of_images(cli: Cli, vit: Path, tmp_path: Path) -> None:
    ended = cli("profile", vit, "--data", "digits", "--option", "split=test", "--out", "run", *FAST)
    assert ended.code == 0, ended.err
    assert "12 images of 16 tokens" in " ".join(ended.out.split())
    run = Profile.load(tmp_path / "run")
    assert run.manifest["corpus"]["split"] == "test"
    again = cli(
        "profile",
        vit,
        "--data",
        "digits",
        "--option",
        "split=test",
        "--out",
        "run",
        "--json",
        *FAST,
    )
    assert json.loads(again.out)["prompts"] == 12


def test_which_tokens_are_read(cli: Cli, vit: Path, tmp_path: Path) -> None:
    words = ("--metrics", "prompt_entropy", "--limit", "5")
    ended = cli(
        "profile",
        vit,
        "-d",
        "digits",
        "--option",
        "tokens=all",
        "--option",
        "image_pooling=class",
        "-o",
        "all",
        *words,
    )
    assert ended.code == 0, ended.err
    assert Profile.load(tmp_path / "all").manifest["counts"]["tokens"]["longest"] == 17
    refused = cli("profile", vit, "-d", "digits", "-o", "all", *words)
    assert_refused(refused, "another")


def test_mistakes(cli: Cli, vit: Path) -> None:
    assert_refused(cli("profile", vit, "-o", "x"), "reads images, not texts", "data=")
    assert_refused(cli("profile", vit, "-d", "digist", "-o", "x"), "Did you mean 'digits'")
    assert_refused(
        cli("profile", vit, "-d", "digits", "--option", "attention=causal", "-o", "x"),
        "cannot be chosen",
    )
    assert_refused(
        cli("profile", vit, "-d", "digits", "--option", "tokens=patch", "-o", "x"),
        "Did you mean 'patches'",
    )
