"""How states were read, from manifests of different kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope import probe, profile
from layerscope.core.identity import SEVERAL, Reading
from layerscope.training import LayerWatch
from tests.tiny import tiny_model


def test_of_a_manifest_and_of_conventions_alone() -> None:
    conventions = {
        "final_norm": "raw",
        "final_norm_module": "LayerNorm",
        "max_length": 64,
        "sink": "keep",
    }
    reading = Reading("raw", 64, "LayerNorm")
    assert (
        Reading.of({"kind": "profile", "conventions": conventions})
        == Reading.of(conventions)
        == reading
    )
    assert Reading.of({"conventions": {}}) == Reading()


@pytest.mark.parametrize(
    ("norm", "module", "shows_output"),
    [
        ("raw", "LayerNorm", False),
        ("raw", None, True),
        ("applied", "LayerNorm", True),
        ("hf", None, True),
    ],
)
def test_what_follows_from_the_final_norm(
    norm: str, module: str | None, shows_output: bool
) -> None:
    assert Reading(norm, 8, module).shows_output == shows_output


def test_of_real_runs() -> None:
    model = tiny_model("llama")
    read = Reading.of(
        profile(
            model,
            ["a cat", "a dog ran"],
            metrics=["prompt_entropy"],
            max_length=9,
            final_norm="raw",
        ).manifest
    )
    assert (read.final_norm, read.max_length, read.has_norm) == ("raw", 9, True)
    without = profile(
        tiny_model("bert"), ["a cat", "a dog ran"], metrics=["prompt_entropy"]
    ).manifest
    assert not Reading.of(without).has_norm


def test_what_is_written_is_what_is_read_back() -> None:
    for reading in (
        Reading("raw", 64, "LayerNorm"),
        Reading("applied", None, None),
        Reading(None, 128, "RMSNorm"),
    ):
        assert Reading.of({"conventions": reading.as_conventions()}) == reading
    assert "final_norm_module" not in Reading("raw", 8, SEVERAL).as_conventions()


def test_every_command_writes_it(tmp_path: Path) -> None:
    """A probe once kept its length under another name, and an evaluation did not say whether the
    model has a final norm."""
    model, texts = tiny_model("llama"), [f"{'xy'[i % 2] * 3}{i}" for i in range(40)]
    probed = probe(
        model,
        texts,
        labels=[text[0] for text in texts],
        heads="knn",
        max_length=9,
        final_norm="raw",
        progress=False,
    )
    assert Reading.of(probed.manifest) == Reading("raw", 9, "LlamaRMSNorm")
    watched = LayerWatch(
        model.module, texts[:4], model.tokenizer, max_length=7, out=tmp_path / "layers.csv"
    )
    assert Reading.of(watched.conventions) == Reading("raw", 7, "LlamaRMSNorm")
