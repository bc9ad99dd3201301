"""The page is one file; nothing in it runs or escapes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from layerscope.errors import InvalidValueError
from layerscope.extras import MissingExtraError
from layerscope.report.contents import gather
from layerscope.report.page import inert_json, payload
from layerscope.report.page import page as make_page
from layerscope.report.write import write_report
from tests.report.synthetic import (
    READOUTS,
    large_pair,
    synthetic_evaluation,
    synthetic_run,
)

EVIL = "</script><script>alert(1)</script>&\u2028"


def test_html_is_one_inert_file(tmp_path: Path) -> None:
    path = write_report(
        [synthetic_run(EVIL), synthetic_evaluation(EVIL, tasks=[EVIL])], tmp_path / "new" / "a.html"
    )
    text = path.read_text(encoding="utf-8")
    assert text.count("<script") == 2  # the data and the page's own
    assert text.count("</script>") == 2
    assert "\u2028" not in text.split("<script")[1]
    assert "alert(1)</" not in text.split("<body>")[1]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "default-src &#x27;none&#x27;" in text
    assert "unsafe" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["models"] == [EVIL]


def test_inert_json() -> None:
    assert inert_json({"a": "<&>\u2028\u2029"}) == '{"a":"\\u003c\\u0026\\u003e\\u2028\\u2029"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        inert_json([float("nan")])


def test_values_have_five_digits_and_no_nan() -> None:
    run = synthetic_run()
    run.table.loc[0, "value"] = 1.23456789
    run.table.loc[1, "value"] = float("nan")
    held = payload(gather([run]))
    series = held["curves"][0]["parts"][""]["series"][0]
    assert series["v"][:2] == [1.2346, None]
    assert "NaN" not in json.dumps(held)
    assert held["curves"][0]["parts"][""]["layer"] == list(range(7))


def test_sites_inside_blocks_are_a_part_of_their_own() -> None:
    run = synthetic_run()
    inner = run.table[run.table["layer"] > 0].copy()
    inner["site"] = inner["site"] + ".attn"
    run.table = pd.concat([run.table, inner], ignore_index=True)
    parts = payload(gather([run]))["curves"][0]["parts"]
    assert list(parts) == ["", "attn"]
    assert parts["attn"]["sites"][0] == "block.0.attn"


def test_scores_are_points_with_their_ties() -> None:
    held = payload(gather([synthetic_evaluation(tasks=["a", "b"], readouts=READOUTS[:2], best=2)]))[
        "scores"
    ][0]
    assert [block["readout"] for block in held["readouts"]] == READOUTS[:2]
    block = held["readouts"][0]
    assert block["score"][0][2] == 30
    assert block["gain"][0][2] == 10
    assert (block["lo"][0][2], block["hi"][0][2]) == (9, 11)
    assert block["tied"] == [[2], [2]]
    assert block["mean"][2] == 30.5


def test_a_large_report_stays_small() -> None:
    assert len(make_page(gather(large_pair(tasks=12))).encode()) < 1_100_000


def test_the_page_needs_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_report([synthetic_run(), synthetic_evaluation()], tmp_path / "a.html").exists()
    with pytest.raises(MissingExtraError, match=r"\[report\]'"):
        synthetic_run().plot()


@pytest.mark.parametrize("name", ["a.doc", "a.pdf", "a.md", "page"])
def test_a_report_is_a_page(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"does not end in \.html.*run\.plot\(\)"):
        write_report([synthetic_run()], tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert write_report([synthetic_run()], tmp_path / "a.HTM").exists()
