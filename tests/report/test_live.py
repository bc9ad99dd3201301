"""A page that follows a running profile, and which page is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layerscope.errors import LayerscopeError
from layerscope.profiling import Profile, profile
from layerscope.report import live as live_module
from layerscope.report.live import LIVE_PAGE, LivePage, page_for
from layerscope.store import RunFolder
from tests.report.synthetic import synthetic_evaluation, synthetic_run
from tests.tiny import tiny_model

OPTIONS: dict[str, Any] = {"max_length": 24, "views": 2, "permutations": 2, "progress": False}


def data_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])


def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerscope.profiling.job.choose_shard_size", lambda *given: 3)


def test_the_page_follows_the_run(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small_shards(monkeypatch)
    monkeypatch.setattr(live_module, "_SHARE", 1e9)
    seen = []
    write = LivePage._write

    def watched(self: LivePage, *given: Any) -> None:
        write(self, *given)
        seen.append(data_of(self.path))

    monkeypatch.setattr(LivePage, "_write", watched)
    run = profile(tiny_model(), texts, out=tmp_path / "run", live=True, **OPTIONS)
    assert [f"{n} of 10 texts" in held["live"]["text"] for n, held in zip((3, 6, 9, 10), seen, strict=True)] == [True] * 4
    assert all(held["live"]["done"] is False for held in seen)
    assert all(held["curves"][0]["parts"][""]["layer"] == [0, 1, 2, 3] for held in seen)
    final = data_of(tmp_path / "run" / LIVE_PAGE)
    assert final["live"] is None
    series = final["curves"][0]["parts"][""]["series"]
    entropy = next(s for s in series if (s["metric"], s["norm"], s["sink"]) == ("prompt_entropy", "raw", "keep"))
    assert entropy["v"] == pytest.approx(run.curve("prompt_entropy")["value"].tolist(), rel=1e-4)
    # the numbers of all texts before the end are those of the end
    last = seen[-1]["curves"][0]["parts"][""]["series"]
    assert next(s for s in last if s["metric"] == "prompt_entropy" and s["norm"] == "raw")["v"] == entropy["v"]


def test_following_changes_no_number_and_slows_little(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small_shards(monkeypatch)
    calls = []
    write = LivePage._write
    monkeypatch.setattr(LivePage, "_write", lambda self, *given: (calls.append(1), write(self, *given)))
    monkeypatch.setattr(live_module, "_SHARE", 0.0)  # after the first page there is no time left for more
    plain = profile(tiny_model(), texts, out=tmp_path / "plain", **OPTIONS)
    assert not (tmp_path / "plain" / LIVE_PAGE).exists()
    followed = profile(tiny_model(), texts, out=tmp_path / "followed", live=True, **OPTIONS)
    assert len(calls) == 1
    assert followed.table.equals(plain.table)
    (tmp_path / "followed" / LIVE_PAGE).unlink()
    again = profile(tiny_model(), texts, out=tmp_path / "followed", live=True, **OPTIONS)
    assert again.table.equals(plain.table)
    assert data_of(tmp_path / "followed" / LIVE_PAGE)["live"] is None


def test_a_page_that_cannot_be_made_does_not_stop_the_run(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: LivePage, *given: Any) -> None:
        raise ValueError("too few texts")

    monkeypatch.setattr(LivePage, "_write", broken)
    run = profile(tiny_model(), texts, out=tmp_path / "run", live=True, metrics=["dime"], **OPTIONS)
    assert isinstance(run, Profile)
    assert (tmp_path / "run" / LIVE_PAGE).exists()


def test_live_needs_a_folder(texts: list[str]) -> None:
    with pytest.raises(LayerscopeError, match="give `out` too"):
        profile(tiny_model(), texts, live=True)


def test_what_is_shown(tmp_path: Path) -> None:
    run = synthetic_run()
    run.save(tmp_path / "run")
    assert page_for([tmp_path / "run"]) == tmp_path / "run" / "report.html"
    assert (tmp_path / "run" / "report.html").exists()
    both = page_for([tmp_path / "run"], [synthetic_evaluation()])
    assert tmp_path not in both.parents
    assert len(data_of(both)["scores"]) == 1
    (tmp_path / "run" / LIVE_PAGE).write_text("live")
    folder = RunFolder(tmp_path / "run")
    folder.write_manifest({**(folder.manifest() or {}), "status": "running"})
    assert page_for([tmp_path / "run"]) == tmp_path / "run" / LIVE_PAGE
    (tmp_path / "run" / LIVE_PAGE).unlink()
    with pytest.raises(LayerscopeError, match="is not finished"):
        page_for([tmp_path / "run"])
