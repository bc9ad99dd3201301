"""A file that is written to while it is read: no result may hold rows of two versions."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.support import Cli, Ended

ROWS = 3000
WIDTH = 6
SUFFIXES = (".txt", ".csv", ".jsonl", ".json", ".parquet")


def content(version: str, suffix: str) -> bytes:
    """Return a file's bytes: the same number for every version."""
    texts = [f"text {i:{WIDTH}} of version {version}" for i in range(ROWS)]
    if suffix == ".parquet":
        sink = pa.BufferOutputStream()
        table = pa.table({"text": texts})
        pq.write_table(table, sink, compression="none", use_dictionary=False, row_group_size=200)
        return sink.getvalue().to_pybytes()
    if suffix == ".json":
        return json.dumps(texts).encode()
    lines = texts if suffix == ".txt" else [json.dumps({"text": text}) for text in texts]
    return "\n".join(["text", *texts] if suffix == ".csv" else lines).encode()


@contextmanager
def changing(file: Path) -> Iterator[None]:
    """Write two versions of a file in turn, in place, a few rows at a time."""
    versions = [content(version, file.suffix) for version in "AB"]
    file.write_bytes(versions[0])
    ended = threading.Event()

    def write() -> None:
        turn = 0
        with file.open("r+b") as stream:
            while not ended.is_set():
                turn += 1
                new = versions[turn % 2]
                step = max(1, len(new) // 50)
                for at in range(0, len(new), step):
                    stream.seek(at)
                    stream.write(new[at : at + step])
                    stream.flush()
                    ended.wait(0.0005)

    # The reader's thread holds Python's lock for 5 ms at a time, which is as long as it reads.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)


def refused(ended: Ended) -> bool:
    """Whether the command ended with one line that says that the file changed."""
    lines = ended.err.strip().splitlines()
    return ended.code == 1 and "changed while" in lines[-1] and "Traceback" not in ended.err


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_embed(cli: Cli, model_folder: Path, tmp_path: Path, suffix: str) -> None:
    data = tmp_path / f"data{suffix}"
    with changing(data):
        ended = cli("embed", model_folder, "--data", data, "--out", "v.parquet", "--max-length", 4)
    if not refused(ended):
        assert ended.code == 0, ended.err
        texts = pq.read_table(tmp_path / "v.parquet").column("text").to_pylist()
        assert len({text[-1] for text in texts}) == 1
        assert len(texts) == ROWS


def test_embed_between_its_readings(
    cli: Cli, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is exchanged as a whole after it was looked at and before its texts are encoded."""
    from layerscope.embedding import encoders

    data = tmp_path / "data.txt"
    data.write_bytes(content("A", ".txt"))
    open_model = encoders.find_source

    def exchange(*given: object, **options: object) -> object:
        later = tmp_path / "later.txt"
        later.write_bytes(content("B", ".txt"))
        later.replace(data)
        return open_model(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(encoders, "find_source", exchange)
    ended = cli("embed", model_folder, "--data", data, "--out", "v.parquet", "--max-length", 4)
    if not refused(ended):
        table = pq.read_table(tmp_path / "v.parquet")
        facts = json.loads(table.schema.metadata[b"layerscope"])
        read = {text[-1] for text in table.column("text").to_pylist()}
        assert len(read) == 1
        first = cli("embed", model_folder, "--data", data, "--out", "w.parquet", "--max-length", 4)
        assert first.code == 0
        again = pq.read_schema(tmp_path / "w.parquet").metadata[b"layerscope"]
        assert facts["texts"]["sha256"] == json.loads(again)["texts"]["sha256"]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".parquet"])
def test_profile(cli: Cli, model_folder: Path, tmp_path: Path, suffix: str) -> None:
    data = tmp_path / f"data{suffix}"
    words = ("--metrics", "prompt_entropy", "--limit", ROWS - 5, "--max-length", 4)
    with changing(data):
        assert refused(cli("profile", model_folder, "--data", data, *words, "--out", "run"))
