"""Runs and stores of every release open in every later one. A release adds a folder here, and never changes one.

`tests/fixtures/releases/<version>` holds a profile, an evaluation, probes and an embedding store of a tiny model and, but for the
earliest, a study, a sweep and an improvement. `python -m tests.store.make_release` writes that of a new release.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerscope import load_run
from layerscope.models.sealed import check_export
from layerscope.report.contents import gather
from layerscope.store.embeddings import EmbeddingStore, text_key
from layerscope.store.space import describe
from layerscope.store.verify import check_tree
from layerscope.version import VERSION

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
        common = [name for name in written.columns if name in found.columns and written[name].notna().any()]
        assert len(common) > 5
        pd.testing.assert_frame_equal(found[common], written[common], check_dtype=False)
    assert gather([folder / "profile", folder / "evaluation", folder / "probe"]).headline.lead
    if "improve" in kinds:
        assert {check.status for check in check_export(folder / "improve")} == {"ok"}
    statuses = {check.status for check in check_tree(folder)}
    assert statuses == ({"ok", "not verified"} if release.endswith("-without-checksums") else {"ok"})


@pytest.mark.parametrize("release", sorted(path.name for path in RELEASES.iterdir()))
def test_every_store_is_read(release: str, tmp_path: Path) -> None:
    store = EmbeddingStore(Path(shutil.copytree(RELEASES / release / "store", tmp_path / "store")), None)
    (info,) = store.spaces()
    assert info.texts > 4
    assert {check.status for check in store.verify()} == {"not verified" if release.endswith("-without-checksums") else "ok"}
    space = store.space(describe(store.folder(info.key)) or {}, info.description["storage_dtype"])
    assert not space.has([text_key("nobody wrote this")], ["mean/applied/keep"], ["block.2"]).any()
    assert np.isfinite(np.load(next(space.folder.glob("*.npy")))).all()
