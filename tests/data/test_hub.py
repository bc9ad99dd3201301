"""Hub datasets, with a stand-in for the `datasets` package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from layerscope.catalogue import Installed
from layerscope.data import load_corpus
from layerscope.data.corpus import CorpusEntry, TextStream
from layerscope.data.hub import HubSpec, parse_hub_spec
from layerscope.errors import DataError, DownloadError, OfflineError
from layerscope.extras import MissingExtraError
from tests.shared import offline


class Table:
    """As much of a dataset as is used."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns
        kinds = {
            name: "string" if isinstance(values[0], str) else "int64"
            for name, values in columns.items()
        }
        self.features = {name: SimpleNamespace(dtype=kind) for name, kind in kinds.items()}
        self.info = SimpleNamespace(version="1.0.0", license="")
        self.cache_files = [{"filename": "/cache/wikitext/train.arrow"}]

    def select_columns(self, names: list[str]) -> Table:
        return Table({name: self.columns[name] for name in names})

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        yield self.columns


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Answers load_dataset with `table` or raises `error`; `calls` holds what was asked for."""
    state = SimpleNamespace(
        table=Table({"id": [1, 2], "text": ["a text", "  "]}), error=None, calls=[]
    )
    module: Any = ModuleType("datasets")
    module.config = SimpleNamespace(HF_HUB_OFFLINE=False)

    def load_dataset(repo: str, config: str | None, *, split: str) -> Table:
        state.calls.append((repo, config, split))
        if state.error:
            raise state.error
        return state.table

    module.load_dataset = load_dataset
    module.disable_progress_bars = lambda: None
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    state.module = module
    return state


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("org/name", HubSpec("org/name")),
        ("org/name:conf-1.0", HubSpec("org/name", "conf-1.0")),
        ("org/name/test", HubSpec("org/name", None, "test")),
        ("org/name@v1.2:c/test", HubSpec("org/name", "c", "test", "v1.2")),
        ("org/name:c/validation", HubSpec("org/name", "c", "validation")),
        ("name", None),
        ("/org/name", None),
        ("a/b/c/d", None),
        ("org/name with spaces", None),
        ("../name", None),
    ],
)
def test_specs(text: str, spec: HubSpec | None) -> None:
    assert parse_hub_spec(text) == spec


def test_a_dataset_of_the_hub(hub: SimpleNamespace) -> None:
    corpus = load_corpus("some-org/some-name:conf/test")
    assert corpus.texts == ("a text",)
    assert corpus.dropped == {"whitespace": 1}
    assert corpus.name == "some-org/some-name:conf/test"
    assert corpus.source["kind"] == "hub"
    assert corpus.source["column"] == "text"
    assert hub.calls == [("some-org/some-name", "conf", "test")]


def test_columns(hub: SimpleNamespace) -> None:
    hub.table = Table({"q": ["a"], "r": ["b"], "n": [1]})
    with pytest.raises(DataError, match="2 columns of text"):
        load_corpus("some-org/some-name")
    assert load_corpus("some-org/some-name", column="r").texts == ("b",)


def test_an_unreachable_hub(hub: SimpleNamespace) -> None:
    hub.error = ConnectionError("cannot reach the hub")
    with offline(), pytest.raises(OfflineError, match="not in the local hub cache"):
        load_corpus("some-org/some-name")
    with pytest.raises(DownloadError, match=r"cannot reach the hub.*Check the name"):
        load_corpus("some-org/some-name")


def test_unknown_split(hub: SimpleNamespace) -> None:
    hub.error = ValueError("Unknown split 'dev'. Should be one of ['train'].")
    with pytest.raises(DataError, match=r"one of \['train'\]"):
        load_corpus("some-org/some-name/dev")


def test_without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"\[hub\]'"):
        load_corpus("some-org/some-name")


def test_the_other_columns_of_hub_and_catalogued_data(
    hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(TextStream("org/name").rows()) == [("a text", {"id": 1})]
    (tmp_path / "a.csv").write_text("n,text\n1,some words\n")
    entry = CorpusEntry(
        name="some",
        summary="",
        license="",
        origin=Installed(lambda: tmp_path / "a.csv", "some 1.0"),
        column="text",
        clean=str.upper,
    )
    records = entry.open(None, whole=True)
    assert [row for _, row in records.rows()] == [("SOME WORDS", {"n": "1"})]
