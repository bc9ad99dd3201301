"""What a report is made of: labels, notices, marks, styles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layerscope import select
from layerscope.choose.choice import Choice
from layerscope.errors import LayerscopeError
from layerscope.report.charts import COLORS, styles
from layerscope.report.contents import gather, read
from layerscope.report.page import ON_DARK
from layerscope.report.words import conventions
from tests.report.synthetic import READOUTS, synthetic_evaluation, synthetic_run


def test_labels_say_what_differs_and_no_more() -> None:
    runs = [synthetic_run(), synthetic_run(final_norm="raw", max_length=64), synthetic_run("other")]
    assert [c.label for c in gather(runs).sections] == ["small · applied", "small · raw", "other"]
    same = gather([synthetic_run(), synthetic_run()])
    assert len({c.label for c in same.sections}) == 2


def test_different_conventions_are_warned_of() -> None:
    report = gather(
        [
            synthetic_run(),
            synthetic_run("other", max_length=64, metrics={"alpha": 2.0, "rows": "unit"}),
        ]
    )
    warned = [n.text for n in report.notices if n.level == "warn"]
    assert any(
        "They differ in longest text (128 tokens: small; 64 tokens: other)" in text
        for text in warned
    )
    assert any("differ in α (1.0: small; 2.0: other)" in text for text in warned)
    assert any("differ in rows" in text for text in warned)
    rows = conventions(report.sections)
    differing = set(rows.loc[rows["differs"], "name"])
    assert differing == {"longest text", "α", "rows"}
    alike = gather([synthetic_run(), synthetic_run("other")])
    assert [n for n in alike.notices if n.level == "warn"] == []


def test_a_model_without_a_final_norm_differs_in_nothing() -> None:
    report = gather(
        [synthetic_run(), synthetic_run("other", "bert", final_norm="raw", final_norm_module=None)]
    )
    assert not any("differ in final norm" in n.text for n in report.notices)


def test_the_same_warning_is_said_once() -> None:
    report = gather([synthetic_run(), synthetic_run("other")])
    (notice,) = [n for n in report.notices if "were cut" in n.text]
    assert notice.about == "every run"
    failed = synthetic_evaluation()
    failed.manifest["failed"] = [{"task": "Lost", "reason": "no data"}]
    failed.manifest["undefined"] = [f"line {i}" for i in range(5)]
    texts = [n.text for n in gather([failed]).notices]
    assert "Lost could not be scored: no data" in texts
    assert any("2 more, in manifest.json" in text for text in texts)


def test_marks_follow_the_evaluation_then_the_profile_then_a_given_choice() -> None:
    run = synthetic_evaluation(best=2)
    (mark,) = gather([synthetic_run(), run]).choices.values()
    assert (mark.layer, mark.rule) == (select(run).layer, "measured")
    (mark,) = gather([synthetic_run()]).choices.values()
    assert mark.rule != "measured"
    choice = Choice(4, READOUTS[0], rule="mine", layers=6, model="small", reason="because")
    (mark,) = gather([synthetic_run(), synthetic_evaluation(), choice]).choices.values()
    assert (mark.layer, mark.rule, mark.reason) == (4, "mine", "because")
    with pytest.raises(LayerscopeError, match="which is not among these runs: other"):
        gather([synthetic_run("other"), choice])


def test_a_choice_is_read_from_a_file(tmp_path: Path) -> None:
    choice = Choice(4, tied=(4,), rule="mine", layers=6, model="small", reason="because")
    path = tmp_path / "choice.json"
    path.write_text(choice.to_json(), encoding="utf-8")
    assert read(path) == choice
    path.write_text(json.dumps({"layer": 3}), encoding="utf-8")
    with pytest.raises(LayerscopeError, match="holds no choice of a layer"):
        read(path)


def test_nothing_given_and_nothing_held(tmp_path: Path) -> None:
    with pytest.raises(LayerscopeError, match="at least one run"):
        gather([])
    with pytest.raises(LayerscopeError, match="holds no run"):
        gather([tmp_path])
    (tmp_path / "manifest.json").write_text(
        '{"kind": "bench", "status": "complete"}', encoding="utf-8"
    )
    with pytest.raises(LayerscopeError, match="unknown kind of run 'bench'"):
        gather([tmp_path])


def test_a_color_per_model_and_a_dash_per_run() -> None:
    looks = styles(["a", "b", "a"])
    assert looks[0].color == looks[2].color != looks[1].color
    assert looks[0].dash != looks[2].dash
    many = styles([f"m{i}" for i in range(9)])
    assert len({look.color for look in many}) == len(COLORS) == len(ON_DARK)


def _contrast(one: str, other: str) -> float:
    def light(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        lin = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    a, b = sorted((light(one), light(other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


def test_lines_are_clear_on_both_grounds() -> None:
    assert min(_contrast(color, "#ffffff") for color in COLORS) >= 3
    assert min(_contrast(color, "#181b1f") for color in ON_DARK) >= 4.5
