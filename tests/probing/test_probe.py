"""`layerscope.probe` from data to a run's folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from layerscope.errors import LayerscopeError, RunFolderError, UnknownNameError
from layerscope.models import LoadedModel
from layerscope.probing import ProbeRun, examples, job, probe, training
from layerscope.probing.frozen import ModelReader
from layerscope.probing.run import wilson
from tests.tiny import tiny_model

QUICK: dict[str, Any] = {"epochs": 4, "trial": 1, "learning_rates": (1e-2, 3e-2), "progress": False}


def letters(count: int = 120) -> tuple[list[str], list[str]]:
    """Texts whose first letters are their class."""
    rng = np.random.default_rng(0)
    labels = ["xyz"[i % 3] for i in range(count)]
    return [
        label * 3 + "".join(rng.choice(list("abcdef"), rng.integers(2, 9))) + str(i)
        for i, label in enumerate(labels)
    ], labels


def test_a_run_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = letters()
    model = tiny_model("llama")
    kinds = ["attention", "linear", "mean", "knn"]
    run = probe(model, data=texts, labels=labels, heads=kinds, out=tmp_path / "run", **QUICK)
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
    # the table follows from the items
    for row in run.table.itertuples():
        items = run.items[(run.items["probe"] == row.probe) & (run.items["layer"] == row.layer)]
        hits = int((items["predicted"] == items["label"]).sum())
        assert row.n == len(items) == 24
        assert row.value == pytest.approx(hits / 24)
        assert (row.ci_low, row.ci_high) == pytest.approx(wilson(hits, 24))
    assert run.manifest["counts"] == {"train": 86, "validation": 10, "test": 24, "classes": 3}
    told = run.manifest["conventions"]
    assert told["final_norm"] == "applied"
    assert told["kept"]["states"]["tokens"] == "float32"
    monkeypatch.setattr(job, "fit", lambda *_: pytest.fail("trained again"))
    again = probe(model, data=texts, labels=labels, heads=kinds, out=tmp_path / "run", **QUICK)
    assert again.table.equals(ProbeRun.load(tmp_path / "run").table)
    with pytest.raises(RunFolderError, match="final_norm"):
        probe(
            model,
            data=texts,
            labels=labels,
            heads=kinds,
            out=tmp_path / "run",
            final_norm="raw",
            **QUICK,
        )


def test_how_states_are_kept_does_not_matter() -> None:
    texts, labels = letters()
    model = tiny_model("llama")
    tables = [
        probe(model, data=texts, labels=labels, store_size=size, **QUICK).table
        for size in (None, 0)
    ]
    np.testing.assert_allclose(tables[0]["value"], tables[1]["value"], atol=1e-12)


def test_nothing_finished_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while reading, then while training the second probe: states and the first probe are
    not computed again."""
    texts, labels = letters()
    model = tiny_model("llama")
    given: dict[str, Any] = {
        "data": texts,
        "labels": labels,
        "heads": ["mean", "attention"],
        **QUICK,
    }
    whole = probe(model, **given)
    real_read, real_fit = ModelReader.read_all, training.fit
    reads: list[int] = []
    stopped: list[int] = []

    def read_all(self: ModelReader, items: Any, *rest: Any) -> Any:
        if items[0] > 50 and not stopped:
            stopped.append(int(items[0]))
            reads.clear()
            raise KeyboardInterrupt
        reads.append(int(items[0]))
        return real_read(self, items, *rest)

    monkeypatch.setattr(ModelReader, "read_all", read_all)
    with pytest.raises(KeyboardInterrupt):
        probe(model, out=tmp_path / "run", **given)
    fits: list[str] = []

    def fit(kind: str, *rest: Any) -> Any:
        fits.append(kind)
        if kind == "attention" and fits.count(kind) == 1:
            raise KeyboardInterrupt
        return real_fit(kind, *rest)

    monkeypatch.setattr(job, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        probe(model, out=tmp_path / "run", **given)
    assert min(reads) == stopped[0]
    monkeypatch.setattr(ModelReader, "read_all", lambda *_: pytest.fail("states were read again"))
    run = probe(model, out=tmp_path / "run", **given)
    assert fits == ["mean", "attention", "attention"]
    assert run.table.drop(columns=["site"]).equals(whole.table.drop(columns=["site"]))


class Stopped(NamedTuple):
    model: LoadedModel
    given: dict[str, Any]
    whole: ProbeRun
    folder: Path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A probe that was stopped while it trained, and what it gives undisturbed."""
    texts, labels = letters(60)
    model, folder = tiny_model("llama"), tmp_path_factory.mktemp("stopped") / "run"
    given: dict[str, Any] = {
        "data": texts,
        "labels": labels,
        "heads": ["mean", "attention"],
        **QUICK,
    }
    whole = probe(model, **given)
    with pytest.MonkeyPatch.context() as patch:
        own = training.write_phase
        seen: list[str] = []

        def write(file: Path, phase: Any) -> None:
            own(file, phase)
            seen.append(file.name)
            if seen.count("attention.training.safetensors") == 2:
                raise KeyboardInterrupt

        patch.setattr(training, "write_phase", write)
        patch.setattr(training, "_WRITE_EVERY", 0.0)
        with pytest.raises(KeyboardInterrupt):
            probe(model, out=folder, **given)
    return Stopped(model, given, whole, folder)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("states-0.safetensors", "flip"), ("states-0.safetensors", "cut"), ("states-6.safetensors", "empty"),
        ("mean.answers.safetensors", "flip"), ("mean.answers.safetensors", "empty"),
        ("attention.training.safetensors", "flip"),
        ("attention.training.safetensors", "cut"),
    ],
)  # fmt: skip
def test_damaged_scratch_files_are_computed_again(
    stopped: Stopped, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    folder = shutil.copytree(stopped.folder, tmp_path / "run")
    file = folder / "shards" / name
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes({"flip": raw, "cut": raw[: len(raw) // 2], "empty": b""}[how])
    run = probe(stopped.model, out=folder, **stopped.given)
    assert run.table.equals(stopped.whole.table)
    assert "damaged" in caplog.text


def test_random_labels_give_chance() -> None:
    rng = np.random.default_rng(0)
    texts = [f"{a}{i}" for i, a in enumerate(rng.choice(list("abcdef"), 400))]
    run = probe(
        tiny_model("llama"),
        data=texts,
        labels=rng.integers(0, 2, 400).tolist(),
        heads=["mean", "knn"],
        **QUICK,
    )
    top = run.table[run.table["metric"] == "top1"]
    assert (top["ci_low"] - 0.06 < 0.5).all(), top["value"]
    assert (top["ci_high"] + 0.06 > 0.5).all(), top["value"]


def test_one_layer_alone_is_the_same_probe() -> None:
    texts, labels = letters()
    model = tiny_model("llama")
    every = probe(model, data=texts, labels=labels, **QUICK)
    one = probe(model, data=texts, labels=labels, layers=[-1], **QUICK)
    assert one.table["layer"].tolist() == [3]
    last, alone = every.curve().iloc[-1], one.curve().iloc[0]
    assert last["value"] == alone["value"]
    assert last["validation"] == alone["validation"]
    assert last["epoch"] == alone["epoch"]


def test_top5_needs_more_than_five_classes() -> None:
    texts = [f"{'abcdefgh'[i % 8]}{i}" for i in range(200)]
    run = probe(
        tiny_model("llama"), data=texts, labels=[t[0] for t in texts], heads="mean", **QUICK
    )
    one, five = run.curve(metric="top1")["value"], run.curve(metric="top5")["value"]
    assert (five >= one).all()
    with pytest.raises(UnknownNameError):
        probe(
            tiny_model("llama"), data=letters()[0], labels=letters()[1], heads="mean", **QUICK
        ).curve(metric="top5")


def test_requests_that_make_no_sense() -> None:
    texts, labels = letters(30)
    model = tiny_model("llama")
    for given, error, told in (
        ({}, LayerscopeError, "needs data"),
        ({"data": texts}, LayerscopeError, "as many labels"),
        ({"data": texts, "labels": labels, "heads": "mlp"}, UnknownNameError, "attention"),
        ({"data": texts, "labels": labels, "layers": [9]}, LayerscopeError, "0 to 3"),
    ):
        with pytest.raises(error, match=told):
            probe(model, **{**QUICK, **given})  # type: ignore[arg-type]


def test_the_figure_and_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from layerscope.report.sections.probe import print_probes, sentence

    texts, labels = letters()
    run = probe(tiny_model("llama"), data=texts, labels=labels, heads=["mean", "knn"], **QUICK)
    assert len(run.plot().to_dict()["concat"]) == 2
    print_probes(run, Console(width=100))
    told = capsys.readouterr().out
    assert "knn" in told
    assert "final_norm" in told
    assert "layer" in sentence(run, "mean")


def test_an_unknown_option_is_named() -> None:
    texts, labels = letters()
    with pytest.raises(UnknownNameError, match="option of probe 'prob'"):
        probe(tiny_model("llama"), data=texts, labels=labels, prob="knn", **QUICK)


def test_data_is_what_the_model_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One name for every source of labeled items: a file, a task, a catalogued image set."""
    file = tmp_path / "labeled.csv"
    file.write_text("text,label\na,x\n")
    asked: list[tuple[str, str]] = []

    def reader(kind: str) -> Any:
        def read(source: Any, *rest: Any, **options: Any) -> None:
            asked.append((kind, Path(source).name))
            raise RuntimeError("read")

        return read

    for kind in ("texts", "task"):
        monkeypatch.setattr(examples, f"read_{kind}", reader(kind))
    for data in (file, "TrecQuestions"):
        with pytest.raises(RuntimeError, match="read"):
            probe(tiny_model("llama"), data)
    assert asked == [
        ("texts", "labeled.csv"),
        ("task", "TrecQuestions"),
    ]
