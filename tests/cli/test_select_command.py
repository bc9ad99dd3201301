"""`layerscope select` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from layerscope.cli.export import _export_command
from tests.choose.support import profile, valley_curve
from tests.cli.support import Cli, assert_refused

KEYS = [
    "layer",
    "site",
    "readout",
    "expected_gain",
    "ci_low",
    "ci_high",
    "risk_of_loss",
    "tied",
    "rule",
    "blocks_saved",
]


def test_a_run_as_text_and_json(cli: Cli, tmp_path: Path) -> None:
    profile({"prompt_entropy": valley_curve(), "anisotropy": [0.8] * 21}).save(tmp_path / "run")
    told = cli("select", "run")
    assert told.code == 0, told.err
    assert ": read layer 16 of 20 (block.15)" in told.out
    for name in ("rule", "why", "risk", "saves"):
        assert f"\n{name} " in told.out
    # nothing was resampled
    assert "\ntied " not in told.out + cli("select", "run", "--max-blocks", "0.5").out
    answer = json.loads(cli("select", "run", "--json").out)
    assert list(answer)[:10] == KEYS
    assert (answer["layer"], answer["site"], answer["rule"], answer["blocks_saved"]) == (
        16,
        "block.15",
        "evidence",
        4,
    )


def test_a_run_with_a_rule_and_a_bound(cli: Cli, tmp_path: Path) -> None:
    profile({"prompt_entropy": valley_curve(), "anisotropy": [0.8] * 21}).save(tmp_path / "run")
    answer = json.loads(cli("select", "run", "--rule", "lowest_prompt_entropy", "--json").out)
    assert (answer["layer"], answer["expected_gain"]) == (7, None)
    tight = json.loads(cli("select", "run", "--max-blocks", "0.5", "--json").out)
    assert tight["layer"] <= 10
    assert tight["warnings"]


def test_refusals_are_one_line(cli: Cli, tmp_path: Path) -> None:
    assert_refused(cli("select"), "give their folders, not nothing")
    assert_refused(cli("select", "nowhere"), "holds no run")
    profile({"prompt_entropy": valley_curve(), "anisotropy": [0.8] * 21}).save(tmp_path / "run")
    assert_refused(cli("select", "run", "--rule", "evidense"), "evidence")
    assert_refused(cli("select", "run", "--max-blocks", "3"), "share of the blocks")
    assert_refused(cli("select", "run", "run", "--labels", "x.csv"), "labels take one model")


def test_a_model_is_told_to_be_profiled_first(cli: Cli, model_folder: Path) -> None:
    for model in (model_folder, "smollm2-135m", "org/model"):
        assert_refused(cli("select", model), "holds no run", "profile it first")


def test_why_prompt_entropy_behind_the_final_norm_is_not_enough(cli: Cli, tmp_path: Path) -> None:
    profile(
        {"prompt_entropy": valley_curve(), "anisotropy": [0.8] * 21}, final_norm="applied"
    ).save(tmp_path / "run")
    reason = json.loads(cli("select", "run", "--json").out)["reason"]
    assert "neither prompt entropy" not in reason
    assert "hides its valley" in reason
    assert "metrics=prompt_entropy,sink_ratio" in reason


@pytest.mark.parametrize(
    ("readout", "center_on", "then"),
    [
        (None, None, "layerscope export m --layer 7"),
        (
            "plain/last/raw/keep/none",
            None,
            "layerscope export m --layer 7 --readout plain/last/raw/keep/none",
        ),
        (
            "one-word/last/raw/keep/corpus",
            None,
            "--readout one-word/last/raw/keep/corpus --center-on YOUR_TEXTS",
        ),
        (
            "plain/mean/raw/keep/corpus",
            "runs/scores",
            "--readout plain/mean/raw/keep/corpus --center-on runs/scores",
        ),
        (
            "echo/mean/raw/drop/none",
            None,
            "--readout plain/mean/raw/keep/none",
        ),  # the nearest that can be exported
    ],
)
def test_the_next_command_is_one_that_export_takes(
    readout: str | None, center_on: str | None, then: str
) -> None:
    choice = SimpleNamespace(model="m", layer=7, readout=readout, center_on=center_on)
    assert _export_command(choice).endswith(then)
