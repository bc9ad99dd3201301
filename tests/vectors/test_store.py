"""The embedding store: what goes in comes out, under its own key only, and survives kills, damage
and a full disk."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.store.checked import ARRAYS
from layerscope.vectors import MissingVectorsError, Shard, VectorSpace, VectorStore, text_key
from layerscope.vectors.store import DESCRIPTION, space_key

SITES = ["embeddings", "block.0", "block.1"]
KIND = "mean/applied/keep"
HERE = {
    "model": {"weights_sha256": "a" * 64, "revision": "main"},
    "template": "{text}",
    "max_length": 128,
}


def keys_of(texts: Sequence[object]) -> list[bytes]:
    return [text_key(str(text)) for text in texts]


def vectors_of(
    texts: Sequence[object], sites: Sequence[str] = SITES, width: int = 4, kind: str = KIND
) -> np.ndarray:
    """Vectors that tell text, site and kind."""
    out = np.empty((len(sites), len(texts), width), dtype=np.float32)
    for i, site in enumerate(sites):
        for j, text in enumerate(texts):
            seed = int.from_bytes(text_key(f"{kind}|{site}|{text}")[:4], "big")
            out[i, j] = np.random.default_rng(seed).standard_normal(width)
    return out


def stored(
    space: VectorSpace,
    keys: Sequence[bytes],
    kinds: Sequence[str],
    sites: Sequence[str],
) -> np.ndarray:
    return ~space.missing(keys, kinds, sites)


def fill(
    space: VectorSpace, texts: Sequence[object], sites: Sequence[str] = SITES, kind: str = KIND
) -> None:
    space.add(Shard(keys_of(texts), sites, {kind: vectors_of(texts, sites, kind=kind)}))


def files_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_round_trip_of_kinds_sites_and_numbers(tmp_path: Path) -> None:
    space = VectorStore(tmp_path).space(HERE)
    texts = ["a", "b", "", "naïve 🙂", "lone \ud800 surrogate"]
    last = vectors_of(texts, kind="last", width=7)
    tokens, sink = np.arange(5), np.arange(15, dtype=np.int16).reshape(3, 5)
    space.add(
        Shard(
            keys_of(texts),
            SITES,
            {KIND: np.asfortranarray(vectors_of(texts)), "last/raw": last},
            {"tokens": tokens, "sink": sink},
        )
    )
    for held in (space, VectorStore(tmp_path).space(HERE)):
        for i, site in enumerate(SITES):
            assert np.array_equal(held.read(keys_of(texts), KIND, site), vectors_of(texts)[i])
            assert np.array_equal(held.read(keys_of(texts), "last/raw", site), last[i])
            assert np.array_equal(held.read_numbers(keys_of(texts), "sink", site), sink[i])
        assert np.array_equal(held.read_numbers(keys_of(texts), "tokens"), tokens)
        assert held.read_numbers(keys_of(texts), "sink", SITES[0]).dtype == np.int16
        assert stored(held, keys_of([*texts, "c"]), [KIND, "last/raw"], SITES).tolist() == [
            True
        ] * 5 + [False]
        assert held.read([], KIND, SITES[0]).shape[0] == 0
        assert stored(held, [], [KIND], SITES).shape == (0,)


def test_any_order_repeats_and_many_chunks(tmp_path: Path) -> None:
    space = VectorStore(tmp_path).space(HERE)
    for start in range(0, 60, 4):
        fill(space, range(start, start + 4))
    fill(space, range(10, 20))  # again: harmless
    asked = np.random.default_rng(0).integers(0, 60, 200).tolist()
    assert np.array_equal(space.read(keys_of(asked), KIND, "block.1"), vectors_of(asked)[2])
    assert np.array_equal(
        VectorStore(tmp_path).space(HERE).read(keys_of(asked), KIND, "block.0"),
        vectors_of(asked)[1],
    )


def test_what_is_missing_is_known_per_kind_and_site(tmp_path: Path) -> None:
    space = VectorStore(tmp_path).space(HERE)
    fill(space, "ab", SITES[:2])
    fill(space, "bc", SITES[2:])
    fill(space, "b", SITES, kind="last")
    asked = keys_of("abcd")
    assert stored(space, asked, [KIND], SITES[:1]).tolist() == [True, True, False, False]
    assert stored(space, asked, [KIND], SITES[2:]).tolist() == [False, True, True, False]
    assert stored(space, asked, [KIND], SITES).tolist() == [
        False,
        True,
        False,
        False,
    ]  # b: from two chunks together
    assert stored(space, asked, [KIND, "last"], SITES).tolist() == [False, True, False, False]
    assert stored(space, asked, ["max"], SITES).tolist() == [False] * 4
    assert np.array_equal(space.read(keys_of("b"), KIND, SITES[2]), vectors_of("b")[2])
    with pytest.raises(
        MissingVectorsError, match=r"no 'vectors/mean/applied/keep' at 'block.1' for 2 of 4 texts"
    ) as caught:
        space.read(asked, KIND, SITES[2])
    assert isinstance(caught.value, LayerscopeError)
    with pytest.raises(MissingVectorsError, match="'numbers/tokens'"):
        space.read_numbers(asked, "tokens")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.text(max_size=4), values, min_size=1, max_size=4), st.data())
@settings(max_examples=100, deadline=None)
def test_descriptions_that_differ_in_one_field_never_share(
    description: dict[str, Any], data: st.DataObject
) -> None:
    field = data.draw(st.sampled_from(sorted(description)))
    other = {**description, field: data.draw(values)}
    same = repr(other[field]) == repr(description[field]) or _json(other) == _json(description)
    assert (space_key(description) == space_key(other)) == same
    without = {name: held for name, held in description.items() if name != field}
    assert space_key(without) != space_key(description)
    assert space_key(dict(reversed(description.items()))) == space_key(description)


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


WRITER = """
import sys
import numpy as np
from pathlib import Path
from layerscope.vectors import Shard, VectorStore, text_key
space = VectorStore(Path(sys.argv[1])).space({"model": "m"})
first, count, size, width = map(int, sys.argv[2:])
for start in range(first, first + count, size):
    ids = np.arange(start, start + size)
    rows = np.repeat(ids[None, :, None] + 1000 * np.arange(2)[:, None, None], width, axis=2).astype(np.float32)
    keys = [text_key(str(i)) for i in ids]
    space.add(Shard(keys, ["s0", "s1"], {"mean": rows, "last": -rows}, {"tokens": ids}))
    print(start, flush=True)
"""


def writer(root: Path, first: int, count: int, size: int, width: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(root), *map(str, (first, count, size, width))]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_leaves_whole_chunks_only(tmp_path: Path) -> None:
    width, size = 20_000, 10
    seen = 0
    for attempt in range(4):
        process = writer(tmp_path, seen, 100_000, size, width)
        assert process.stdout is not None
        for _ in range(2 + attempt):
            assert process.stdout.readline()
        time.sleep(0.003 * attempt)  # another place in the middle of a chunk each time
        process.send_signal(signal.SIGKILL)
        confirmed = [int(line) for line in process.stdout.read().split()]
        process.wait()
        space = VectorStore(tmp_path).space({"model": "m"})
        held = stored(space, keys_of(range(seen + 1000)), ["mean", "last"], ["s0", "s1"])
        count = int(held.sum())
        assert count % size == 0
        assert held[
            :count
        ].all()  # whole chunks, in the order they were written, and the rest is missing
        assert count >= max([seen + (2 + attempt) * size, *(c + size for c in confirmed)])
        for i, site in enumerate(["s0", "s1"]):
            expected = np.arange(count, dtype=np.float32) + 1000 * i
            assert np.array_equal(
                space.read(keys_of(range(count)), "mean", site),
                np.repeat(expected[:, None], width, axis=1),
            )
            assert np.array_equal(space.read(keys_of(range(count)), "last", site)[:, 0], -expected)
        assert np.array_equal(space.read_numbers(keys_of(range(count)), "tokens"), np.arange(count))
        with pytest.raises(MissingVectorsError):
            space.read(keys_of([count]), "mean", "s0")
        seen = count


def test_leftovers_of_a_killed_writer_go_once_they_are_old(tmp_path: Path) -> None:
    space = VectorStore(tmp_path).space(HERE)
    fill(space, "ab")
    leftover = space.folder / ".9-fe.safetensors.9-0a1b2c3d.part"
    leftover.write_bytes(b"half a shard")
    (space.folder / "notes.txt").write_text("somebody's")
    assert stored(VectorStore(tmp_path).space(HERE), keys_of("ab"), [KIND], SITES).all()
    assert leftover.exists()  # young: may be a shard in the making
    for path in space.folder.iterdir():
        os.utime(path, (time.time() - 4000,) * 2)
    again = VectorStore(tmp_path).space(HERE)
    assert not leftover.exists()
    assert (space.folder / "notes.txt").exists()
    assert np.array_equal(again.read(keys_of("ba"), KIND, SITES[0]), vectors_of("ba")[0])


def test_two_processes_write_one_space_and_a_third_sees_it(tmp_path: Path) -> None:
    reader = VectorStore(tmp_path).space({"model": "m"})
    both = [
        writer(tmp_path, first, 200, 10, 8) for first in (0, 150)
    ]  # 150 to 199 are written twice
    for process in both:
        process.communicate()
        assert process.returncode == 0
    assert stored(reader, keys_of(range(350)), ["mean", "last"], ["s0", "s1"]).all()
    assert np.array_equal(
        reader.read(keys_of(range(350)), "mean", "s1")[:, 3], np.arange(350) + 1000
    )


def test_a_full_disk_is_explained_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = VectorStore(tmp_path).space(HERE)
    fill(space, "a")
    before = sorted(space.folder.iterdir())
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="no space left"):
        space.add(Shard(keys_of("b"), SITES, {"one": vectors_of("b"), "two": vectors_of("b")}))
    assert sorted(space.folder.iterdir()) == before
    fill(space, "b")
    assert stored(space, keys_of("ab"), [KIND], SITES).all()


def filled(store: VectorStore, names: str, age: float = 0.0) -> dict[str, VectorSpace]:
    """Spaces used one after the other, the last one `age` seconds ago, each about 30 KB."""
    spaces = {}
    for i, name in enumerate(names):
        spaces[name] = store.space({"name": name})
        vectors = {KIND: vectors_of(range(10), width=256)}
        spaces[name].add(Shard(keys_of(range(10)), SITES, vectors))
        when = time.time() - age - 10 * (len(names) - i)
        os.utime(spaces[name].folder / DESCRIPTION, (when, when))
    return spaces


def test_prune_removes_the_least_recently_used_first(tmp_path: Path) -> None:
    store = VectorStore(tmp_path)
    spaces = filled(store, "abcd")
    each = files_size(spaces["a"].folder)
    VectorStore(tmp_path).space({"name": "a"})  # a use

    def left() -> str:
        return "".join(name for name, space in spaces.items() if space.folder.exists())

    before = store.size()
    assert store.prune(keep_bytes=int(2.5 * each)) == before - store.size() > 0
    assert left() == "ad"
    assert store.size() == files_size(tmp_path)
    assert stored(spaces["a"], keys_of([0]), [KIND], SITES).all()
    store.prune(keep_bytes=int(1.2 * each))
    assert left() == "a"
    store.prune(keep_bytes=0)
    assert store.size() == 0
    assert not stored(store.space({"name": "b"}), keys_of([0]), [KIND], SITES).any()


def test_what_does_not_fit_the_limit_is_refused(tmp_path: Path) -> None:
    filled(VectorStore(tmp_path), "abc")
    each = files_size(tmp_path) // 3
    store = VectorStore(tmp_path, size_limit=int(4.5 * each))
    space = store.space({"name": "new"})
    wide = {KIND: vectors_of(range(10), width=256)}
    store.check_room(4 * 10 * len(SITES) * 256)
    space.add(Shard(keys_of(range(10)), SITES, wide))
    with pytest.raises(RunFolderError, match=r"limit is 1\d\d.* KB.*store_size=.*prune"):
        store.check_room(4 * 10 * len(SITES) * 256)
    assert stored(space, keys_of(range(10)), [KIND], SITES).all()
    assert len(list(tmp_path.glob("??/*"))) == 4  # nothing was removed for it


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "no header", "site"])
def test_a_damaged_shard_is_discarded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    space = VectorStore(tmp_path).space(HERE)
    fill(space, "ab")
    (file,) = space.folder.glob(f"*{ARRAYS}")
    fill(space, "cd")
    raw = file.read_bytes()
    damaged = {
        "empty": b"",
        "cut": raw[: len(raw) // 2],
        "header": raw[:8] + b"[" + raw[9:],
        "no header": b"\xff" * 8 + raw[8:],
        "site": raw.replace(b"block.0", b"block.3"),
    }
    file.write_bytes(damaged[damage])
    with caplog.at_level(logging.WARNING, logger="layerscope"):
        store = VectorStore(tmp_path)
        again = store.space(HERE)
        again.refresh()
    assert len(caplog.records) == 1
    assert file.name in caplog.text
    assert not file.exists()
    assert stored(again, keys_of("abcd"), [KIND], SITES).tolist() == [False, False, True, True]
    fill(again, "ab")
    assert np.array_equal(again.read(keys_of("abcd"), KIND, SITES[0]), vectors_of("abcd")[0])


def test_a_store_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    fill(VectorStore(tmp_path).space(HERE), "ab")
    folder = VectorStore(tmp_path).space(HERE).folder
    folder.chmod(0o555)
    (folder / DESCRIPTION).chmod(0o444)
    try:
        space = VectorStore(tmp_path).space(HERE)
        assert np.array_equal(space.read(keys_of("ab"), KIND, SITES[0]), vectors_of("ab")[0])
        if os.geteuid() != 0:
            with pytest.raises(RunFolderError, match="cannot write"):
                fill(space, "c")
    finally:
        folder.chmod(0o755)


def test_damaged_vectors_and_numbers_are_encoded_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = ["a", "b", "c"], ["d", "e"]
    vector, number = vectors_of(first)[0].tobytes(), np.arange(3).tobytes()
    for name, content in (("vector", vector), ("number", number)):
        root = tmp_path / name
        space = VectorStore(root).space(HERE)
        for texts in (first, second):
            numbers = {"tokens": np.arange(len(texts))}
            space.add(Shard(keys_of(texts), SITES, {KIND: vectors_of(texts)}, numbers))
        (file,) = (f for f in space.folder.glob(f"*{ARRAYS}") if content in f.read_bytes())
        raw = bytearray(file.read_bytes())
        raw[raw.index(content)] ^= 2
        file.write_bytes(raw)
        reader = VectorStore(root).space(HERE)
        with pytest.raises(
            MissingVectorsError,
            match=r"was damaged.*has been discarded\. Run the same command again",
        ):
            (
                [reader.read(keys_of(first), KIND, site) for site in SITES],
                reader.read_numbers(keys_of(first), "tokens"),
            )
        assert np.array_equal(reader.read(keys_of(second), KIND, SITES[0]), vectors_of(second)[0])
        assert (
            stored(reader, keys_of(first + second), [KIND], SITES).tolist()
            == [False] * 3 + [True] * 2
        )
        assert "is damaged" in caplog.text
        fill(reader, first)
        assert np.array_equal(reader.read(keys_of(first), KIND, SITES[-1]), vectors_of(first)[-1])


def test_nothing_is_written_through_a_link_out_of_the_store(tmp_path: Path) -> None:
    key = space_key(HERE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / key[:2]).symlink_to(elsewhere)
    with pytest.raises(RunFolderError, match="leads out of the embedding store"):
        VectorStore(tmp_path / "store").space(HERE)
    assert not list(elsewhere.iterdir())
    (tmp_path / "linked").symlink_to(tmp_path / "whole")  # the user's own link to the store is fine
    (tmp_path / "whole").mkdir()
    fill(VectorStore(tmp_path / "linked").space(HERE), "ab")
    whole = VectorStore(tmp_path / "whole").space(HERE)
    assert stored(whole, keys_of("ab"), [KIND], SITES).all()
