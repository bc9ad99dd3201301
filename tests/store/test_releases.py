"""Runs and stores of every release open in every later one. A release adds a folder here, and never
changes one.

`tests/fixtures/releases/<version>` holds a profile, an evaluation, probes and an embedding store of
a tiny model and, but for the earliest, a study, a sweep and an improvement. `python -m
tests.store.make_release` writes that of a new release.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from layerscope import load_run
from layerscope.core.runs import read_manifest, refuse_newer
from layerscope.errors import RunFolderError
from layerscope.exporting import Exported
from layerscope.models import load
from layerscope.models.sealed import check_export
from layerscope.probing import training
from layerscope.profiling import job
from layerscope.report.contents import gather
from layerscope.report.write import write
from layerscope.store import checked
from layerscope.store.embeddings import EmbeddingStore, text_key
from layerscope.store.space import describe
from layerscope.store.verify import check_tree
from layerscope.version import VERSION
from layerscope_paper.studies.run import StudyRun
from tests.faults.commands import Commands

RELEASES = Path(__file__).parents[1] / "fixtures" / "releases"


def test_this_release_has_its_folder() -> None:
    assert (RELEASES / VERSION).is_dir()


@pytest.mark.parametrize("release", sorted(path.name for path in RELEASES.iterdir()))
def test_every_run_opens_with_its_numbers(release: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RELEASES / release, tmp_path / "release"))
    kinds = {"profile": "profile", "evaluation": "scores", "probe": "probe"}
    if not release.endswith("-without-checksums"):
        kinds |= {"study": "study", "sweep": "sweep", "improve": "candidates"}
    for kind, table in kinds.items():
        run = load_run(folder / kind)
        assert run.kind == kind
        assert run.summary()
        written = pd.read_csv(folder / kind / f"{table}.csv")
        found = run.tables()[table]
        common = [
            name
            for name in written.columns
            if name in found.columns and written[name].notna().any()
        ]
        assert len(common) > 5
        pd.testing.assert_frame_equal(found[common], written[common], check_dtype=False)
    assert gather([folder / "profile", folder / "evaluation", folder / "probe"]).headline.lead
    if "improve" in kinds:
        assert {check.status for check in check_export(folder / "improve")} == {"ok"}
    statuses = {check.status for check in check_tree(folder)}
    assert statuses == (
        {"ok", "not verified"} if release.endswith("-without-checksums") else {"ok"}
    )


@pytest.mark.parametrize("release", sorted(path.name for path in RELEASES.iterdir()))
def test_every_run_goes_on_a_page(release: str, tmp_path: Path) -> None:
    for kind in sorted(
        path.name for path in (RELEASES / release).iterdir() if path.name != "store"
    ):
        write(gather([RELEASES / release / kind]), tmp_path / f"{kind}.html")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with pytest.MonkeyPatch.context() as patched:
        for owner, name in (
            (subprocess, "run"),
            (job, "choose_shard_size"),
            (StudyRun, "plot"),
            (training, "_WRITE_EVERY"),
        ):
            patched.setattr(owner, name, getattr(owner, name))  # put back what `Commands` replaces
        made = Commands(tmp_path_factory.mktemp("home"), ["profile", "probe", "study", "improve"])
        # random weights differ between machines; those of the releases are named by their digest
        made.model.identity["weights_sha256"] = load_run(RELEASES / "0.2.0" / "profile").manifest[
            "model"
        ]["weights_sha256"]
        yield made


@pytest.mark.parametrize(
    ("release", "kind"),
    [("0.2.0", "profile"), ("0.2.0", "probe"), ("0.2.0", "improve"), ("0.1.0", "improve")],
)
def test_the_same_command_goes_on_with_a_run(
    release: str, kind: str, commands: Commands, tmp_path: Path
) -> None:
    shutil.copytree(RELEASES / release / kind, tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*.parquet")}
    commands.run(
        kind, tmp_path
    )  # of other configurations it says that the folder holds another run
    assert {
        file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*.parquet")
    } == before


def test_a_run_whose_numbers_an_earlier_version_measured_is_not_mixed(
    commands: Commands, tmp_path: Path
) -> None:
    shutil.copytree(RELEASES / "0.1.0" / "study", tmp_path / "run")
    with pytest.raises(RunFolderError, match=r'layerscope: "0\.1\.0" there, ".*" here'):
        commands.run("study", tmp_path)


def test_a_run_of_a_newer_version_is_refused(commands: Commands, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RELEASES / VERSION / "profile", tmp_path / "run"))
    checked.write_json(
        folder / "manifest.json", {**(read_manifest(folder) or {}), "layerscope": "9.1.0"}
    )
    uses: list[Callable[[], Any]] = [
        lambda: load_run(folder),
        lambda: gather([folder]),
        lambda: list(check_tree(tmp_path)),
        lambda: commands.run("profile", tmp_path),
    ]
    for use in uses:
        with pytest.raises(
            RunFolderError, match=rf"run was written by layerscope 9\.1\.0, and this is {VERSION}"
        ) as caught:
            use()
        assert len(str(caught.value).splitlines()) == 1


def test_an_export_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RELEASES / VERSION / "improve", tmp_path / "export"))
    facts = json.loads((folder / "layerscope.json").read_text(encoding="utf-8"))
    checked.write_json(folder / "layerscope.json", {**facts, "layerscope": "9.1.0"})
    uses: list[Callable[[], Any]] = [
        lambda: Exported.load(folder),
        lambda: load(folder),
        lambda: check_export(folder),
    ]
    for use in uses:
        with pytest.raises(
            RunFolderError,
            match=rf"export was written by layerscope 9\.1\.0, and this is {VERSION}",
        ):
            use()


@pytest.mark.parametrize("version", ["0.2.7", "", None, "x", 3, "9" * 5000, "0.0.1"])
def test_a_version_that_is_none_or_not_newer_is_no_reason(version: Any) -> None:
    refuse_newer({"layerscope": version}, Path("here"))


@pytest.mark.parametrize("release", sorted(path.name for path in RELEASES.iterdir()))
def test_every_store_is_read(release: str, tmp_path: Path) -> None:
    store = EmbeddingStore(
        Path(shutil.copytree(RELEASES / release / "store", tmp_path / "store")), None
    )
    (info,) = store.spaces()
    assert info.texts > 4
    assert {check.status for check in store.verify()} == {
        "not verified" if release.endswith("-without-checksums") else "ok"
    }
    space = store.space(describe(store.folder(info.key)) or {}, info.description["storage_dtype"])
    assert not space.has([text_key("nobody wrote this")], ["mean/applied/keep"], ["block.2"]).any()
    assert np.isfinite(np.load(next(space.folder.glob("*.npy")))).all()
