"""Any finished run opens by its folder; what cannot be opened says why."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import layerscope
from layerscope.core import plugins, runs
from layerscope.core.plugins import Registry
from layerscope.core.runs import (
    RunKind,
    load_run,
    read_manifest,
    refuse_newer,
    resolve,
    run_kinds,
    view,
)
from layerscope.errors import RunFolderError, UnknownNameError
from layerscope.store import checked
from layerscope.version import VERSION
from tests.report.synthetic import synthetic_evaluation, synthetic_run


def write(folder: Path, manifest: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(
        manifest if isinstance(manifest, str) else json.dumps(manifest)
    )
    return folder


def test_a_profile_and_an_evaluation_open_by_their_folders(tmp_path: Path) -> None:
    synthetic_run().save(tmp_path / "a")
    scored = synthetic_evaluation()
    for name, table in scored.tables().items():
        (tmp_path / "b").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / "b" / f"{name}.parquet")
    write(tmp_path / "b", scored.manifest)
    first, second = layerscope.load_run(tmp_path / "a"), layerscope.load_run(str(tmp_path / "b"))
    assert (first.kind, second.kind) == ("profile", "evaluation")
    assert first.name == second.name == "small"
    assert list(first.tables()) == ["profile", "prompts"]
    assert first.path == tmp_path / "a"
    assert first.summary()["model"] == "small"


def test_every_kind_and_every_view_is_where_the_registry_says() -> None:
    for kind in run_kinds.all().values():
        found = resolve(kind.target)
        assert found.kind == kind.name
        for name in ("load", "name", "summary", "tables"):
            assert hasattr(found, name), f"{kind.target} has no {name}"
        for name in kind.views:
            assert callable(view(kind.name, name))
    with pytest.raises(UnknownNameError, match="view of a profile run 'dance'"):
        view("profile", "dance")


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"kind": "profile", "status": "running"}, "is not finished. Run the same command again"),
        (
            {"kind": "profil", "status": "complete"},
            "unknown kind of run 'profil'. Did you mean 'profile'",
        ),
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        (synthetic_run().manifest, "holds no profile table"),
    ],
)
def test_what_cannot_be_opened_says_why(tmp_path: Path, manifest: Any, said: str) -> None:
    with pytest.raises(layerscope.LayerscopeError, match=said):
        load_run(write(tmp_path / "run", manifest))


def test_a_damaged_table_is_a_damaged_run(tmp_path: Path) -> None:
    synthetic_run().save(tmp_path)
    (tmp_path / "profile.parquet").write_bytes(b"no table")
    with pytest.raises(
        RunFolderError, match=r"profile\.parquet is damaged .*checksum.*overwrite=True"
    ):
        load_run(tmp_path)


def test_no_run_there(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nowhere holds no run: there is no such folder"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"holds no run: there is no manifest\.json"):
        load_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        load_run(tmp_path / "file")
    write(tmp_path / "runs" / "one", {})
    with pytest.raises(RunFolderError, match=r"but folders that do \(one\)"):
        load_run(tmp_path / "runs")


def test_the_wrong_kind_is_named(tmp_path: Path) -> None:
    synthetic_run().save(tmp_path)
    with pytest.raises(
        RunFolderError,
        match=r"a run of kind 'profile', not 'evaluation'\. `layerscope\.load_run` opens any",
    ):
        layerscope.Evaluation.load(tmp_path)


class Note:
    """A kind of run from outside the package."""

    kind, manifest, name = "note", {"kind": "note"}, "a note"

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def load(cls, path: str | Path) -> Note:
        return cls(Path(path))

    def summary(self) -> dict[str, Any]:
        return {"text": (self.path / "note.txt").read_text()}

    def tables(self) -> dict[str, pd.DataFrame]:
        return {}


NOTE = RunKind("note", f"{__name__}:Note")


def test_another_package_adds_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("note", f"{__name__}:NOTE", "layerscope.runs")
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point] if group == "layerscope.runs" else []
    )
    fresh: Registry[RunKind] = Registry(
        "kind of run", "layerscope.runs", name=lambda k: k.name, check=lambda k: True
    )
    monkeypatch.setattr(runs, "run_kinds", fresh)
    write(tmp_path, {"kind": "note", "status": "complete"})
    (tmp_path / "note.txt").write_text("hello")
    assert load_run(tmp_path).summary() == {"text": "hello"}


def test_opening_a_run_is_light() -> None:
    """The registry itself imports neither torch nor pandas nor altair."""
    code = "import sys, layerscope.core.runs; print([m for m in ('torch', 'pandas', 'altair') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    synthetic_run().save(folder)
    checked.write_json(
        folder / "manifest.json", {**(read_manifest(folder) or {}), "layerscope": "9.1.0"}
    )
    with pytest.raises(
        RunFolderError, match=rf"run was written by layerscope 9\.1\.0, and this is {VERSION}"
    ) as caught:
        load_run(folder)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("version", ["0.2.7", "", None, "x", 3, "9" * 5000, "0.0.1"])
def test_a_version_that_is_none_or_not_newer_is_no_reason(version: object) -> None:
    refuse_newer({"layerscope": version}, Path("here"))
