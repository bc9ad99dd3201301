"""`layerscope-zoo list` and `fetch`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from layerscope_zoo.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: exit code, stdout and stderr."""

    def ended(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = 0
        try:
            main(words)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return ended


@pytest.fixture
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "layerscope.catalogue.Entry.fetch",
        lambda *_, **__: pytest.fail("fetched before all names were checked"),
    )


@pytest.mark.usefixtures("nothing_is_fetched")
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("lee", "minilm"), ("unknown model, corpus or task 'minilm'", "mean 'minilm-l6'")),
        (("minilm-l6", "SmsSpan"), ("task 'SmsSpan'", "Did you mean 'SmsSpam'")),
        (("minilm-l6", "--tasks", "STS112"), ("unknown task 'STS112'", "mean 'STS12'")),
        ((), ("give a model, a corpus or a task",)),
    ],
)
def test_every_name_is_checked_first(
    run: Run, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    code, out, err = run("fetch", *words)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert all(part in err for part in parts)


def test_fetch_prints_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "layerscope.catalogue.Entry.fetch", lambda entry, **_: Path("/") / entry.shelf / entry.name
    )
    monkeypatch.setattr(
        "layerscope.evaluation.tasks.TaskSpec.facts", lambda self: {"items": len(self.name)}
    )
    assert (
        run("fetch", "lee", "minilm-l6")[1] == "lee: /corpora/lee\nminilm-l6: /models/minilm-l6\n"
    )
    assert (
        run("fetch", "SmsSpam", "--tasks", "STS12")[1]
        == "SmsSpam: /tasks/SmsSpam\nSTS12: 5 items\n"
    )
    assert json.loads(run("fetch", "--tasks", "STS12", "--json")[1]) == {"STS12": "5 items"}


def test_a_license_is_accepted_by_the_option(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_ACCEPT_LICENSE", "other")
    monkeypatch.setattr(
        "layerscope_zoo.origins.Converted.download", lambda origin, entry: Path("/folder")
    )
    assert "must be accepted first" in run("fetch", "gemma3-270m")[2]
    assert run("fetch", "gemma3-270m", "--accept-license")[1] == "gemma3-270m: /folder\n"


def test_everything_is_listed(run: Run) -> None:
    rows = {row["name"]: row for row in json.loads(run("list", "--json")[1])}
    assert {"minilm-l6", "lee", "SmsSpam", "fashion-mnist", "controlled-ar"} <= set(rows)
    assert rows["controlled-ar"]["cached"] is True
    assert "controlled-ar  model, Apache-2.0 · cached" in run("list")[1]


def test_the_core_knows_which_names_the_package_adds() -> None:
    """Without the package, the core says for each of these names what to install."""
    from layerscope_zoo import corpora, models, tasks

    from layerscope.extras import ZOO_NAMES

    for kind, module in (("model", models), ("corpus", corpora), ("task", tasks)):
        assert set(ZOO_NAMES[kind]) == {entry.name for entry in module.ENTRIES}
