"""What the presets of the paper and of its released code change."""

from __future__ import annotations

import pytest
from tests.tiny import tiny_model

from layerscope.errors import UnknownNameError
from layerscope.profiling import profile
from layerscope.profiling.config import make_config
from layerscope_paper.presets import PRESETS, get_preset


def test_presets_differ_as_documented() -> None:
    default, paper, released = (
        make_config(**PRESETS[name]) for name in ("default", "paper", "released")
    )
    assert set(PRESETS) == {"default", "paper", "released"}
    assert (default.final_norm, paper.final_norm, released.final_norm) == ("applied", "hf", "hf")
    assert (default.views, paper.views, released.views) == (4, 16, 16)
    assert (default.augmenter, paper.augmenter, released.augmenter) == (
        "builtin",
        "builtin",
        "nlpaug",
    )
    assert (default.options.rows, paper.options.rows, released.options.rows) == (
        "centered-unit",
        "raw",
        "centered-unit",
    )
    assert (default.options.group, released.options.group) == (None, 64)
    habits = ("clamp_gram", "curvature_absolute", "infonce_one_way", "dime_feature_side")
    assert all(getattr(released.options, name) for name in habits)
    assert not any(
        getattr(options, name) for options in (default.options, paper.options) for name in habits
    )


def test_keywords_override_the_preset() -> None:
    given = {"views": 3, "final_norm": "raw", "augmenter": "builtin", "group": 8, "alpha": 2}
    config = make_config(**{**PRESETS["released"], **given})
    assert (config.views, config.final_norm, config.augmenter) == (3, "raw", "builtin")
    assert (config.options.group, config.options.alpha, config.options.clamp_gram) == (8, 2, True)


@pytest.mark.parametrize("preset", ["default", "paper", "released"])
def test_presets_run_and_are_recorded(preset: str, texts: list[str]) -> None:
    if preset == "released":
        pytest.importorskip("nlpaug")
    run = profile(
        tiny_model("llama"),
        texts[:6],
        **PRESETS[preset],
        metrics=["paper"],
        max_length=24,
        permutations=3,
    )
    conventions = run.manifest["conventions"]
    assert conventions["views"] == {"default": 4}.get(preset, 16)
    assert run.table["value"].notna().all()


def test_presets_give_different_numbers(texts: list[str]) -> None:
    model = tiny_model("llama")

    def entropy(**settings: object) -> list[float]:
        run = profile(
            model, texts[:6], metrics=["prompt_entropy", "curvature"], max_length=24, **settings
        )  # type: ignore[arg-type]
        return run.table["value"].tolist()

    default, paper, released = (
        entropy(),
        entropy(**PRESETS["paper"]),
        entropy(**PRESETS["released"]),
    )
    assert default != paper != released != default
    assert (
        entropy(final_norm="applied", views=16, rows="centered-unit", pooled_rows="centered-unit")
        == default
    )


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown preset 'papre'\. Did you mean 'paper'"):
        get_preset("papre")
