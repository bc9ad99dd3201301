"""The other commands: lists, fetching by name, version and help."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

import layerscope
from layerscope.errors import LayerscopeError
from layerscope.metrics import metrics
from layerscope.report import contents, page  # noqa: F401 - bound before a test replaces it
from layerscope.store import atomic
from tests.cli.support import Cli, assert_refused


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version") == (0, f"layerscope {layerscope.__version__}\n", "")
    told = cli("--help")
    assert told.code == 0
    for command in ("profile", "list", "report"):
        assert command in told.out
    told = cli("profile", "-h")
    assert told.code == 0
    assert "--final-norm" in told.out


def test_wrong_usage_is_code_2(cli: Cli) -> None:
    assert cli("profil").code == 2
    assert cli("profile").code == 2
    assert cli("profile", "m", "--no-such-option").code == 2


def test_models(cli: Cli) -> None:
    rows = json.loads(cli("list", "models", "--json").out)
    assert {"smollm2-135m", "minilm-l6"} <= {row["name"] for row in rows}
    for row in rows:
        assert row.keys() == {"name", "title", "blocks", "width", "license", "cached"}
        # this test's cache is empty, but some come with the package
        assert row["cached"] is row["name"].startswith(("controlled-", "vision-"))
    told = cli("list", "models")
    assert told.code == 0
    assert "minilm-l6" in told.out
    assert "Families: " in told.out


def test_corpora_and_metrics(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = cli("list", "corpora")
    assert told.code == 0
    assert "lee" in told.out
    assert "wikitext" in told.out
    told = cli("list", "metrics")
    assert told.code == 0
    for name, metric in metrics().items():
        assert name in told.out
        assert metric.info.unit in told.out


def test_templates_and_tasks(cli: Cli) -> None:
    told = cli("list", "templates")
    assert told.code == 0
    assert "one-word" in told.out
    assert "{text}" in told.out
    rows = json.loads(cli("list", "tasks", "--json").out)
    assert {row["kind"] for row in rows} <= {"Classification", "STS"}
    assert_refused(cli("list", "model"), "unknown list 'model'", "Did you mean 'models'")


def test_an_error_that_nobody_foresaw_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken(runs: object, texts: bool) -> None:
        raise KeyError("a \x1b[31mkey\nthat is not there")

    monkeypatch.setattr(contents, "gather", broken)
    ended = cli("report", tmp_path)
    assert ended.code == 1
    assert ended.err.startswith("layerscope: unexpected KeyError")
    assert len(ended.err.strip().splitlines()) == 1
    assert "\x1b" not in ended.err
    assert "Traceback" in (tmp_path / "cache" / "last-error.txt").read_text()
    monkeypatch.setenv("LAYERSCOPE_DEBUG", "1")
    with pytest.raises(KeyError):
        cli("report", tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EFBIG, "File too large"), "`ulimit -f`"),
        (MemoryError(), "memory is short, or limited"),
    ],
    ids=["file size", "data"],
)
def test_limits_are_told(
    error: Exception, said: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(runs: object, texts: bool) -> None:
        raise error

    monkeypatch.setattr(contents, "gather", broken)
    ended = cli("report", tmp_path)
    assert_refused(ended, said)
    assert "unexpected" not in ended.err
    with pytest.raises(LayerscopeError, match="ulimit -f"), atomic.explained(tmp_path):
        raise OSError(errno.EFBIG, "File too large")


def test_a_missing_file_is_told_before_a_model_is_fetched(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(*_: object, **__: object) -> None:
        raise AssertionError("a model was asked for")

    monkeypatch.setattr("layerscope.profiling.job.kind_read_by", fetched)
    monkeypatch.setattr("layerscope.probing.job.kind_read_by", fetched)
    assert_refused(cli("profile", "org/model", "--data", "reviews.csv"), "no file 'reviews.csv'")
    assert_refused(cli("probe", "org/model", "--data", "reviews.csv"), "no file 'reviews.csv'")


def test_entropy_suggests_prompt_entropy(cli: Cli, model_folder: Path, data: Path) -> None:
    assert_refused(
        cli("profile", model_folder, "--data", data, "--metrics", "entropy"),
        "Did you mean 'prompt_entropy'?",
    )
