"""A label-free rule from another package: one value behind an entry point, and `select --rule` goes
by it."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from layerscope.core import plugins
from layerscope.selection import Choice
from layerscope.selection.rules import RULES, RuleInfo
from tests.cli.support import run_main
from tests.selection.support import profile, valley_curve


def _at(depth: float | None):
    return lambda evidence: Choice(
        round((depth or 0.5) * evidence.n_blocks), reason="the user's own rule."
    )


RULE = RuleInfo("halfway", "the layer in the middle, or at another depth", _at, parameter=True)


def test_a_rule_of_another_package_chooses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = str(tmp_path / "run")
    profile({"prompt_entropy": valley_curve()}).save(run)
    point = EntryPoint("halfway", f"{__name__}:RULE", RULES.group)
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point] if group == point.group else []
    )
    monkeypatch.setattr(RULES, "_things", dict(RULES._things))
    monkeypatch.setattr(RULES, "_loaded", False)
    for rule, layer in (("halfway", 10), ("halfway:0.25", 5)):
        ended = run_main(monkeypatch, capsys, "select", run, "--rule", rule, "--json")
        assert ended.code == 0, ended
        told = json.loads(ended.out)
        assert (told["layer"], told["rule"], told["reason"]) == (
            layer,
            rule,
            "the user's own rule.",
        )


def test_without_it_its_name_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile({"prompt_entropy": valley_curve()}).save(tmp_path / "run")
    ended = run_main(monkeypatch, capsys, "select", str(tmp_path / "run"), "--rule", "halfway")
    assert ended.code != 0
    assert "unknown rule 'halfway'" in ended.err
