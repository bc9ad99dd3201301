"""The remembered sha256 of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.core import fingerprints
from layerscope.core.files import sha256_of
from layerscope.core.fingerprints import file_sha256


@pytest.mark.parametrize("place", [0, 100_003, -1])
def test_a_bit_that_a_disk_lost_changes_the_fingerprint(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        fingerprints, "stat_key", lambda path: (1,)
    )  # nothing tells that the file was written to
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 9000 + b"end")
    asked = []
    monkeypatch.setattr(
        fingerprints, "sha256_of", lambda path: asked.append(path) or sha256_of(path)
    )
    before = file_sha256(file)
    monkeypatch.setattr(fingerprints, "_READ", {})  # another process
    assert file_sha256(file) == before == sha256_of(file)
    assert len(asked) == 1
    raw = bytearray(file.read_bytes())
    raw[place] ^= 16
    file.write_bytes(raw)
    monkeypatch.setattr(fingerprints, "_READ", {})
    assert file_sha256(file) == sha256_of(file) != before
