"""A run's folder: whose it is, what is refused, and what a table on disk holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerscope.errors import RunFolderError
from layerscope.store import RunFolder, Shard, ShardStore
from layerscope.store.folder import config_key

CONFIG = {"model": {"weights_sha256": "ab" * 32, "dtype": "float32"}, "profile": {"alpha": 1.0, "final_norm": "raw"}}


def begun(path: Path, config: dict[str, object] = CONFIG) -> RunFolder:
    folder = RunFolder(path)
    folder.write_manifest({"key": config_key(config), "config": config, "status": "running"})
    return folder


def test_a_new_folder_is_a_fresh_start(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "new").open(CONFIG) is None
    assert RunFolder(tmp_path).open(CONFIG) is None


def test_the_same_run_is_found_again(tmp_path: Path) -> None:
    held = begun(tmp_path / "run").open(CONFIG)
    assert held is not None
    assert held["status"] == "running"


def test_keys_do_not_depend_on_the_order_of_settings() -> None:
    turned = {name: dict(reversed(value.items())) for name, value in reversed(CONFIG.items())}
    assert config_key(turned) == config_key(CONFIG)
    assert config_key({**CONFIG, "more": 1}) != config_key(CONFIG)


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    other = {"model": {**CONFIG["model"], "dtype": "bfloat16"}, "profile": {"alpha": 2.0, "final_norm": "raw"}}
    folder = begun(tmp_path)
    with pytest.raises(RunFolderError) as caught:
        folder.open(other)
    message = str(caught.value)
    assert 'model.dtype: "float32" there, "bfloat16" here' in message
    assert "profile.alpha: 1.0 there, 2.0 here" in message
    assert "final_norm" not in message
    assert "--overwrite" in message


def test_overwrite_replaces_another_run_and_its_shards(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    ShardStore(folder.scratch).write(0, Shard(np.arange(1), np.zeros((1, 1, 1, 2)), {}))
    assert folder.open({**CONFIG, "profile": {}}, overwrite=True) is None
    assert not folder.scratch.exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(RunFolderError, match=r"not empty \(thesis.tex\) and holds no run"):
        RunFolder(tmp_path).open(CONFIG)
    assert RunFolder(tmp_path).open(CONFIG, overwrite=True) is None
    assert (tmp_path / "thesis.tex").read_text() == "important"


def test_what_a_killed_first_write_leaves_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / ".manifest.json.123.part").write_text('{"ki')
    assert RunFolder(tmp_path).open(CONFIG) is None


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(RunFolderError, match="out is a file; a run needs a folder"):
        RunFolder(tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b'{"key": "ab', b"\xff\xfe\x00", b"[]", b'"text"'])
def test_a_damaged_manifest_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"manifest\.json cannot be read.*Delete the folder or choose another --out"):
        RunFolder(tmp_path).manifest()


def test_tables_as_parquet_and_csv_agree(tmp_path: Path) -> None:
    table = pd.DataFrame({"site": ["embed", "block.0"], "value": [1 / 3, np.nan], "n": [3, 0]})
    folder = RunFolder(tmp_path)
    folder.write_table("profile", table)
    pd.testing.assert_frame_equal(folder.read_table("profile"), table)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "profile.csv"), table, check_exact=True)
    with pytest.raises(RunFolderError, match=r"holds no prompts table\. Run the same command again with --overwrite"):
        folder.read_table("prompts")


def test_a_shard_exists_once_both_its_files_do(tmp_path: Path) -> None:
    store, shard = ShardStore(tmp_path), Shard(np.array([4, 2]), np.ones((3, 2, 1, 5), np.float32), {"flat": np.zeros((3, 2))})
    assert not store.has(0)
    store.write(0, shard)
    assert store.has(0)
    back = store.read(0)
    assert list(back.prompts) == [4, 2]
    assert not isinstance(back.pooled, np.ndarray)  # stays on disk
    assert all(np.array_equal(back.pooled[site], shard.pooled[site]) for site in range(len(shard.pooled)))
    assert back.values.keys() == {"flat"}
    for name in ("000000.pooled.npy", "000000.values.npz"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        assert not store.has(0)
        (tmp_path / name).write_bytes(content)
