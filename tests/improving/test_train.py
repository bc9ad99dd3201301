"""Training: what the loss is, that a student learns, that it goes on after a kill, and that one
that is no better stays home."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import layerscope
from layerscope.core.heads import Head, make_target, unit
from layerscope.core.readout import Readout
from layerscope.errors import DataError, InvalidValueError, UnknownNameError
from layerscope.improving import fit as training
from layerscope.improving.candidates import Chosen, Reader
from layerscope.improving.fit import (
    RATE,
    Lesson,
    head_of,
    settle_plan,
    similarity_loss,
    train_student,
    training_folder,
)
from layerscope.progress import Silent
from layerscope.training import distill
from layerscope.training.distill import TrainingPlan, embed_by_length
from layerscope.vectors import VectorStore
from tests.improving.test_heads import improve
from tests.improving.test_improve import some_texts

TEXTS = some_texts(480)
pytestmark = pytest.mark.usefixtures("stored")
QUICK = {
    "max_steps": 8,
    "eval_steps": 2,
    "learning_rate": 2e-3,
    "per_device_train_batch_size": 16,
}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture(scope="module")
def taught(llama, tmp_path_factory):
    """The plain vectors of a layer, and a teacher that goes by words."""
    reader = Reader(llama, VectorStore(tmp_path_factory.mktemp("store"), None), 96)
    words = sorted({word for text in TEXTS for word in text.split()})
    counts = np.array([[float(text.split().count(word)) for word in words] for text in TEXTS])
    return Lesson(TEXTS, Chosen(reader, Readout(), 2).encode(TEXTS), make_target(counts), "words")


def train(model, taught, work=None, settings=QUICK, bar=None, on_rows=None):
    baseline = lambda texts: np.random.default_rng(0).normal(size=(len(texts), 8))  # noqa: E731
    with training_folder(work) as folder:
        plan = TrainingPlan(folder, model.device, 0, None, RATE, settings=settings)
        return train_student(
            model, 2, taught, baseline, plan, max_length=32, bar=bar or Silent(), on_rows=on_rows
        )


def reference_loss(student: np.ndarray, teacher: np.ndarray) -> float:
    ours, theirs = (
        unit(rows.astype(np.float64)) @ unit(rows.astype(np.float64)).T
        for rows in (student, teacher)
    )
    total, squares = 0.0, 0.0
    for i in range(len(ours)):
        rest = [j for j in range(len(ours)) if j != i]
        p, q = (
            np.exp(of[i, rest] / 0.05) / np.exp(of[i, rest] / 0.05).sum() for of in (theirs, ours)
        )
        total += float((p * np.log(p / q)).sum())
        squares += float(((ours[i, rest] - theirs[i, rest]) ** 2).sum())
    n = len(ours)
    return total / n + 10 * squares / (n * (n - 1))


def test_the_loss_is_what_it_says_and_zero_for_the_teacher_itself(rng):
    student, teacher = rng.normal(size=(7, 5)), rng.normal(size=(7, 4))
    found = similarity_loss(torch.tensor(student), torch.tensor(teacher))
    assert float(found) == pytest.approx(reference_loss(student, teacher), rel=1e-9)
    turned = teacher @ np.linalg.qr(rng.normal(size=(4, 4)))[0]  # only similarities count
    assert float(similarity_loss(torch.tensor(turned), torch.tensor(teacher))) == pytest.approx(
        0, abs=1e-9
    )
    moved = similarity_loss(torch.tensor(teacher + 3.0), torch.tensor(teacher))
    assert float(moved) > 0.1  # vectors with a common part are not right


@pytest.mark.parametrize("side", ["right", "left"])
def test_texts_read_by_length_give_the_vectors_of_the_whole_batch(side):
    class Sums(torch.nn.Module):
        """What a model sees of each text: its tokens, in order, and how wide its batch was."""

        def forward(self, fed):
            self.widths = [*getattr(self, "widths", []), fed["input_ids"].shape[1]]
            places = fed["attention_mask"].cumsum(1) * fed["attention_mask"]
            kept = (fed["input_ids"] * places).sum(1, keepdim=True)
            return {
                "sentence_embedding": torch.cat(
                    [kept, fed["attention_mask"].sum(1, keepdim=True)], 1
                )
            }

    lengths = torch.tensor([3, 9, 1, 4, 2, 9, 5])
    mask = (torch.arange(9)[None] < lengths[:, None]).long()
    mask = mask if side == "right" else mask.flip(1)
    features = {
        "input_ids": torch.arange(63).view(7, 9) * mask + 99 * (1 - mask),
        "attention_mask": mask,
        "kind": "text",
    }
    vectors, order = embed_by_length(model := Sums(), features, chunks=3)
    assert torch.equal(vectors, Sums()(features)["sentence_embedding"][order].float())
    assert model.widths == [3, 9, 9]


def test_a_student_learns_and_is_what_was_compared(llama, taught):
    before = [parameter.clone() for parameter in llama.module.parameters()]
    longer = {
        **QUICK,
        "max_steps": 40,
        "eval_steps": 20,
        "learning_rate": 4e-3,
        "per_device_train_batch_size": 32,
    }
    done = train(llama, taught, settings=longer)
    assert done.training.is_better
    assert done.training.student > done.training.head + 0.02
    assert all(
        torch.equal(a, b) for a, b in zip(before, llama.module.parameters(), strict=True)
    )  # the user's model stays
    assert done.model.n_blocks == 2
    assert done.model.identity["trained"]["texts"] == len(TEXTS) - 2 * (len(TEXTS) // 8)
    assert done.model.identity["weights_sha256"] != llama.identity["weights_sha256"]


@pytest.fixture(scope="module")
def stopped(llama, taught, tmp_path_factory):
    """The folder of a training that was stopped at its third look, after two checkpoints."""
    work, looks, asked = tmp_path_factory.mktemp("stopped"), [], training.agreement

    def stop(vectors, target):
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt
        return asked(vectors, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "agreement", stop)
        with pytest.raises(KeyboardInterrupt):
            train(llama, taught, work=work)
    return work / "training"


def test_a_stopped_training_goes_on_and_ends_as_one_that_was_not(llama, taught, stopped, tmp_path):
    folder = tmp_path / stopped.name
    shutil.copytree(stopped, folder)
    assert (folder / "checkpoint-4" / "trainer_state.json").is_file()
    (folder / "checkpoint-12").mkdir()  # one that was not finished is not taken
    (folder / "checkpoint-12" / "config.json").write_text("{", encoding="utf-8")
    begun = []
    bar = SimpleNamespace(begin=lambda *given: begun.append(given), advance=lambda units: None)
    resumed = train(llama, taught, work=tmp_path, bar=bar).training
    assert begun == [("training|steps", 8, 4)]
    whole = train(llama, taught).training
    assert resumed.steps == whole.steps
    assert resumed.student == pytest.approx(whole.student, abs=1e-4)


def test_a_pickle_in_a_strangers_training_runs_nothing(llama, taught, stopped, tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    folder = Path(shutil.copytree(stopped, tmp_path / "work" / stopped.name))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        torch.save(Evil(), folder / "checkpoint-4" / name)
    with pytest.raises(pickle.UnpicklingError):
        train(llama, taught, work=tmp_path / "work")
    assert not (tmp_path / "ran").exists()


def test_a_resumed_training_reads_as_many_texts_as_it_began_with(tmp_path):
    assert settle_plan(tmp_path, "a", 5, 3) == (5, 3)
    assert settle_plan(tmp_path, "a", 7, 1) == (5, 3)
    (tmp_path / "training").mkdir()
    assert settle_plan(tmp_path, "b", 7, 1) == (7, 1)
    assert not (tmp_path / "training").exists()  # of another run


def test_a_training_that_finds_nothing_better_stops_early(llama, taught):
    rows: list = []
    settings = {**QUICK, "max_steps": 400, "eval_steps": 1, "learning_rate": 0.5}
    done = train(llama, taught, settings=settings, on_rows=rows.append)
    looks = [row["step"] for row in rows if "train/eval_agreement" in row]
    assert len(looks) <= done.training.steps + distill.PATIENCE


def test_improve_hands_over_a_student(llama, head_wins, here, tmp_path):
    texts = some_texts(300)
    out = tmp_path / "better"
    sent: list = []
    result = improve(llama, texts, out=out, train=QUICK, budget=0.5, on_rows=sent.append)
    losses = [numbers["step"] for numbers in sent if "train/loss" in numbers]
    assert losses == sorted(losses) != []
    assert any("train/eval_agreement" in numbers for numbers in sent)
    evidence = result.manifest["evidence"]
    assert result.choice.layer == llama.n_blocks // 2  # as many blocks as the budget allows
    assert result.manifest["config"]["train"] == QUICK
    trained = evidence["training"]
    if trained is None:  # no better than its head on these texts: said so
        assert any("training did not help" in note for note in result.warnings)
    else:
        assert evidence["after"] == trained["student"] > trained["head"]
        assert "Training the first" in str(result)
        assert evidence["teacher"].count("prompt") == 3  # all texts were read under them
        card = (out / "README.md").read_text()
        assert "The blocks were trained on" in card
        assert str(llama.identity["weights_sha256"]) in card
        assert f"layer {llama.n_blocks // 2} of {llama.n_blocks}" in card
    again = layerscope.load_run(out)
    assert np.allclose(again.encode(texts[:5]), result.encode(texts[:5]), atol=1e-5)
    assert not list(tmp_path.glob(".better*"))


def test_a_student_that_is_no_better_stays_home(llama, head_wins, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "layerscope.improving.fit.agreement",
        lambda vectors, target: np.linspace(0.2, 0.4, len(vectors)),
    )
    texts = some_texts(300)
    result = improve(llama, texts, train={**QUICK, "max_steps": 4, "eval_steps": 2})
    assert result.manifest["evidence"]["training"] is None
    assert any("training did not help" in note for note in result.warnings)
    plain = improve(llama, texts)  # what is handed over is what there would be without training
    assert (result.choice.layer, result.choice.readout) == (
        plain.choice.layer,
        plain.choice.readout,
    )


def test_too_few_texts_to_train_on_are_refused_before_anything_is_read(monkeypatch):
    for name in ("layerscope.command.Command.load", "layerscope.improving.flow.make_judges"):
        monkeypatch.setattr(
            name, lambda *given, **options: pytest.fail("nothing is loaded or judged")
        )
    with pytest.raises(
        DataError,
        match=r"60 texts are too few to train on: it takes 200\. Give more .*leave out train=\.",
    ):
        improve("a-model", some_texts(60), train=True)


def test_what_cannot_be_trained_is_refused_in_one_line(llama):
    with pytest.raises(UnknownNameError, match="setting of the trainer"):
        improve(llama, some_texts(300), train={"nonsense": 1})
    with pytest.raises(UnknownNameError, match="output_dir"):
        improve(llama, some_texts(300), train={"output_dir": "elsewhere"})


def test_a_budget_below_one_block_trains_nothing_and_reads_nothing(llama, monkeypatch):
    monkeypatch.setattr(
        "layerscope.improving.candidates.Reader.read",
        lambda *given, **options: pytest.fail("nothing is read"),
    )
    with pytest.raises(InvalidValueError, match="allows no block to train"):
        improve(llama, some_texts(300), train=QUICK, budget=0.1)


def test_a_head_from_a_dense_layer_is_that_layer(rng):
    for width in (4, 20):  # wider than the model, too
        linear, rows = torch.nn.Linear(9, width), rng.normal(size=(6, 9))
        found = head_of([None, None, SimpleNamespace(linear=linear)])
        assert isinstance(found, Head)
        assert np.allclose(
            found(rows), linear(torch.tensor(rows, dtype=torch.float32)).detach().numpy(), atol=1e-6
        )
        assert np.allclose(found.bias, linear.bias.detach().numpy())
