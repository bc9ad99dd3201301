"""`layerscope.probe` from data to a run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from layerscope.errors import InvalidValueError, LayerscopeError, RunFolderError, UnknownNameError
from layerscope.probing import ProbeRun, examples, job, probe
from layerscope.probing.run import wilson
from layerscope.report.scores import print_probes
from layerscope.vectors.encoder import TextEncoder
from tests.tiny import tiny_model

QUICK: dict[str, Any] = {"epochs": 4, "trial": 1, "learning_rates": (1e-2, 3e-2), "progress": False}


def letters(count: int = 120) -> dict[str, list[str]]:
    """Return texts whose first letters are their class."""
    rng = np.random.default_rng(0)
    labels = ["xyz"[i % 3] for i in range(count)]
    tails = ["".join(rng.choice(list("abcdef"), rng.integers(2, 9))) for _ in labels]
    texts = [
        label * 3 + tail + str(i) for i, (label, tail) in enumerate(zip(labels, tails, strict=True))
    ]
    return {"data": texts, "labels": labels}


def test_a_run_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    kinds = ["attention", "linear", "mean", "knn"]
    settings: dict[str, Any] = {**letters(), "heads": kinds, "out": tmp_path / "run", **QUICK}
    run = probe(model, **settings)
    assert run.probes == kinds
    curve = run.curve("mean")
    assert curve["layer"].tolist() == [0, 1, 2, 3]
    assert curve["site"].iloc[-1] == "block.2", "the last block is probed"
    assert curve["value"].max() > 0.9
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "items.parquet",
        "manifest.json",
        "probe.csv",
        "probe.parquet",
    ]
    for row in run.table.itertuples():  # the table follows from the items
        items = run.items[(run.items["probe"] == row.probe) & (run.items["layer"] == row.layer)]
        hits = int((items["predicted"] == items["label"]).sum())
        assert row.n == len(items) == 24
        assert row.value == pytest.approx(hits / 24)
        assert (row.ci_low, row.ci_high) == pytest.approx(wilson(hits, 24))
    assert run.manifest["counts"] == {"train": 86, "validation": 10, "test": 24, "classes": 3}
    assert run.manifest["conventions"]["final_norm"] == "applied"
    monkeypatch.setattr(job, "run_probes", lambda *_: pytest.fail("computed again"))
    assert probe(model, **settings).table.equals(ProbeRun.load(tmp_path / "run").table)
    with pytest.raises(RunFolderError, match="final_norm"):
        probe(model, **{**settings, "final_norm": "raw"})


def test_the_figure_and_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    run = probe(tiny_model("llama"), **letters(), heads=["mean", "knn"], **QUICK)
    assert run.plot().to_dict()["concat"]
    print_probes(run, Console(width=100))
    printed = capsys.readouterr().out
    assert "knn" in printed
    assert "highest at layer" in printed


def test_how_states_are_kept_does_not_matter() -> None:
    runs = [probe(tiny_model("llama"), **letters(), store_size=size, **QUICK) for size in (None, 0)]
    values = [run.table["value"] for run in runs]
    np.testing.assert_allclose(values[0], values[1], atol=1e-12)
    assert any("again in every epoch" in warning for warning in runs[1].manifest["warnings"])


def test_vectors_of_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped, or one of other heads, reads them from the store."""
    model = tiny_model("llama")
    with pytest.MonkeyPatch.context() as stopped:
        stopped.setattr(job, "probe_table", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            probe(model, **letters(), heads="mean", **QUICK)
    monkeypatch.setattr(TextEncoder, "run", lambda *_: pytest.fail("encoded again"))
    probe(model, **letters(), heads=["mean", "knn"], **QUICK)


def test_random_labels_give_chance() -> None:
    rng = np.random.default_rng(0)
    texts = [f"{a}{i}" for i, a in enumerate(rng.choice(list("abcdef"), 400))]
    labels = rng.integers(0, 2, 400).tolist()
    heads = ["attention", "mean", "knn"]
    run = probe(tiny_model("llama"), texts, labels=labels, heads=heads, **QUICK)
    top = run.table[run.table["metric"] == "top1"]
    assert (top["ci_low"] - 0.06 < 0.5).all(), top["value"]
    assert (top["ci_high"] + 0.06 > 0.5).all(), top["value"]


def test_one_layer_alone_is_the_same_probe() -> None:
    model = tiny_model("llama")
    for head in ("attention", "mean"):
        every = probe(model, **letters(), heads=head, **QUICK).curve().iloc[-1]
        alone = probe(model, **letters(), heads=head, layers=[-1], **QUICK).curve()
        assert alone["layer"].tolist() == [3]
        for column in ("value", "validation", "epoch"):
            assert every[column] == alone[column].iloc[0]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, LayerscopeError, "needs data"),
        ({"data": ["a", "b"]}, InvalidValueError, "as many labels"),
        ({**letters(30), "heads": "mlp"}, UnknownNameError, "attention"),
        ({**letters(30), "layers": [9]}, LayerscopeError, "0 to 3"),
        ({**letters(30), "prob": "knn"}, UnknownNameError, "option of probe 'prob'"),
    ],
)
def test_requests_that_make_no_sense(
    settings: dict[str, Any], error: type[LayerscopeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        probe(tiny_model("llama"), **{**QUICK, **settings})


@pytest.mark.parametrize(("name", "reader"), [("labeled.csv", "texts"), ("TrecQuestions", "task")])
def test_a_name_is_a_file_or_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reader: str
) -> None:
    def read(*_: object) -> None:
        raise RuntimeError("read")

    (tmp_path / "labeled.csv").write_text("text,label\na,x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(examples, f"read_{reader}", read)
    with pytest.raises(RuntimeError, match="read"):
        probe(tiny_model("llama"), name)
