"""The page is one file; nothing in it runs or escapes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerscope.core.readout import describe_readout
from layerscope.errors import InvalidValueError
from layerscope.extras import MissingExtraError
from layerscope.metrics import metrics
from layerscope.report.contents import gather
from layerscope.report.page import inert_json, payload, write_report
from layerscope.report.page import page as make_page
from tests.report.synthetic import (
    READOUTS,
    large_pair,
    synthetic_evaluation,
    synthetic_improvement,
    synthetic_map,
    synthetic_run,
)

EVIL = "</script><script>alert(1)</script>&\u2028"


def test_html_is_one_inert_file(tmp_path: Path) -> None:
    path = write_report(
        [synthetic_run(EVIL), synthetic_evaluation(EVIL, tasks=[EVIL])], tmp_path / "new" / "a.html"
    )
    text = path.read_text(encoding="utf-8")
    assert (
        len(re.findall(r"<script[ >]", text.split("<body>", 1)[1])) == 3
    )  # data, charts, the page's own
    assert text.count("</script>") == 3
    assert "\u2028" not in text.split("<script")[1]
    assert "alert(1)</" not in text.split("<body>", 1)[1]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "default-src &#x27;none&#x27;" in text
    assert "unsafe" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["models"] == [EVIL]


def test_inert_json() -> None:
    assert inert_json({"a": "<&>\u2028\u2029"}) == '{"a":"\\u003c\\u0026\\u003e\\u2028\\u2029"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        inert_json([float("nan")])


def rows_of(chart: dict[str, Any]) -> pd.DataFrame:
    """The rows of a chart on the page."""
    (packed,) = [rows for rows in chart["rows"].values() if "value" in rows["columns"]]
    columns = {
        name: [held["words"][at] for at in held["at"]] if isinstance(held, dict) else held
        for name, held in packed["columns"].items()
    }
    return pd.DataFrame(columns)


def test_values_have_five_digits_and_no_nan() -> None:
    run = synthetic_run()
    run.table.loc[0, "value"] = 1.23456789
    run.table.loc[1, "value"] = float("nan")
    held = payload(gather([run]))
    first = metrics()[run.table["metric"][0]].info.title
    rows = rows_of(next(chart for chart in held["curves"] if chart["title"] == first))
    assert rows["value"][0] == 1.2346
    assert pd.isna(rows["value"][1])
    assert "NaN" not in json.dumps(held)
    assert rows[rows["by_sink"] == "keep"]["x"].tolist() == list(range(7))


def test_sites_inside_blocks_are_a_part_of_their_own() -> None:
    run = synthetic_run()
    inner = run.table[run.table["layer"] > 0].copy()
    inner["site"] = inner["site"] + ".attn"
    run.table = pd.concat([run.table, inner], ignore_index=True)
    held = payload(gather([run]))
    assert held["parts"] == ["", "attn"]
    rows = rows_of(held["curves"][0])
    assert rows[(rows["by_part"] == "attn") & (rows["by_sink"] == "keep")]["x"].tolist() == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_scores_are_points_with_their_ties() -> None:
    held = payload(gather([synthetic_evaluation(tasks=["a", "b"], readouts=READOUTS[:2], best=2)]))
    lines = rows_of(held["scores"]["lines"])
    first = lines[lines["name"] == describe_readout(READOUTS[0])]
    assert first[first["by_task"] == "a"]["value"].tolist()[2] == 30
    assert first[first["by_task"] == "mean over tasks"]["value"].tolist()[2] == 30.5
    (best,) = [table for table in held["tables"] if table["title"] == "Best layer of each task"]
    assert [column[0] for column in best["columns"]] == [
        "a",
        READOUTS[0],
        20,
        30,
        2,
        10,
        9,
        11,
        "2",
    ]


def test_a_large_report_stays_small() -> None:
    assert len(make_page(gather(large_pair(tasks=12))).encode()) < 2_000_000


def test_a_page_with_a_map_of_a_thousand_texts_stays_small() -> None:
    texts = [f"text {i} " + "of a hundred letters " * 4 for i in range(1000)]
    run = synthetic_improvement("small", 12, 8)
    run._map = synthetic_map(1000, 12, texts=texts)
    assert len(make_page(gather([run])).encode()) < 1_400_000


def test_without_altair_there_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtraError, match=r"\[report\]'"):
        write_report([synthetic_run(), synthetic_evaluation()], tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.doc", "a.pdf", "a.md", "page"])
def test_a_report_is_a_page(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"does not end in \.html.*run\.plot\(\)"):
        write_report([synthetic_run()], tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    assert write_report([synthetic_run()], tmp_path / "a.HTM").exists()
