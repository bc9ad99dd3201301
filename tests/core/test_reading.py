"""How states were read, from manifests of different kinds."""

from __future__ import annotations

import pytest

from layerscope import profile
from layerscope.core.reading import Reading
from tests.tiny import tiny_model


def test_of_a_manifest_and_of_conventions_alone() -> None:
    conventions = {"final_norm": "raw", "final_norm_module": "LayerNorm", "max_length": 64, "sink": "keep"}
    reading = Reading("raw", 64, "LayerNorm")
    assert Reading.of({"kind": "profile", "conventions": conventions}) == Reading.of(conventions) == reading
    assert reading.in_words == "up to 64 tokens, final_norm=raw"
    assert Reading.of({"conventions": {}}) == Reading()
    assert Reading().in_words == ""


@pytest.mark.parametrize(
    ("norm", "module", "shows_output", "differs"),
    [
        ("raw", "LayerNorm", False, True),
        ("raw", None, True, False),
        ("applied", "LayerNorm", True, False),
        ("hf", None, True, False),
    ],
)
def test_what_follows_from_the_final_norm(norm: str, module: str | None, shows_output: bool, differs: bool) -> None:
    reading = Reading(norm, 8, module)
    assert (reading.shows_output, reading.differs_from("applied")) == (shows_output, differs)
    assert not reading.differs_from("applied", norm)


def test_of_real_runs() -> None:
    model = tiny_model("llama")
    read = Reading.of(profile(model, ["a cat", "a dog ran"], metrics=["prompt_entropy"], max_length=9, final_norm="raw").manifest)
    assert (read.final_norm, read.max_length, read.has_norm) == ("raw", 9, True)
    without = profile(tiny_model("bert"), ["a cat", "a dog ran"], metrics=["prompt_entropy"]).manifest
    assert not Reading.of(without).has_norm
