"""The controlled set on the CPU, with tiny settings."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from controlled_set import architectures, packing, scan, text, training
from train_controlled_set import main

import layerscope
from layerscope_gpu.emulator import launch, missing

PLAN = training.Plan(
    steps=40,
    batch=16,
    length=24,
    width=16,
    blocks=2,
    heads=2,
    checkpoints=(0, 10),
    log_every=20,
    learning_rate=1e-2,
)
CPU = torch.device("cpu")


def _reviews(count: int = 120) -> list[str]:
    draw = random.Random(0)
    kinds, verdicts = (
        ["film", "story", "actor", "scene"],
        ["good", "dull", "too long", "a surprise"],
    )
    return [
        ". ".join(
            f"The {draw.choice(kinds)} was {draw.choice(verdicts)}"
            for _ in range(draw.randint(3, 9))
        )
        + f". Take {i}."
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    text.prepare(folder, 300, _reviews())
    return folder


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    for name in architectures.NAMES:
        training.train(name, text.read(prepared), PLAN, out, CPU, say=lambda line: None)
    return out


def _log(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open() as file:
        return list(csv.DictReader(file))


def test_tokens_come_back(prepared: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(prepared / text.TOKENIZER))
    train, held_out = text.split(_reviews())
    assert 0 < len(held_out) < 20
    assert not set(train) & set(held_out)
    streams = text.read(prepared)
    for stream, side in ((streams.train, train), (streams.held_out, held_out)):
        ends = np.flatnonzero(stream == text.EOS)
        assert len(ends) == len(side)
        assert tokenizer.decode(stream[: ends[0]].tolist()) == side[0]
    assert text.split(reversed(_reviews()))[1] == held_out[::-1]


def test_masking() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 300, (200, 100), generator=generator)
    ids[:, 0] = text.BOS
    shown, targets = training.masked(ids, 0.3, 300, generator)
    chosen = targets != -100
    assert not chosen[:, 0].any()
    assert torch.equal(shown[~chosen], ids[~chosen])
    assert torch.equal(targets[chosen], ids[chosen])
    assert float(chosen[:, 1:].float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float((shown[chosen] == text.MASK).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((shown[chosen] == ids[chosen]).float().mean()) == pytest.approx(0.1, abs=0.02)


def test_what_follows_is_what_is_predicted() -> None:
    stream = torch.arange(4, 100, dtype=torch.int32)
    ids, following = training.windows(stream, 5, 8, torch.Generator().manual_seed(0))
    assert torch.equal(ids[:, 1:], following[:, :-1])
    assert torch.equal(ids[:, 2:], ids[:, 1:-1] + 1)
    assert (ids[:, 0] == text.BOS).all()


@pytest.mark.parametrize("name", architectures.NAMES)
def test_losses_fall_and_models_reload(name: str, trained: Path) -> None:
    rows = _log(trained / name)
    losses = [float(row["held_out_loss"]) for row in rows]
    assert [int(row["step"]) for row in rows] == [0, 10, 20, 40]
    assert losses[0] == pytest.approx(np.log(300), abs=0.6)
    assert losses[-1] < losses[0] - 1
    assert sorted(folder.name for folder in (trained / name).glob("step*")) == [
        "step0",
        "step10",
        "step40",
    ]
    loaded = layerscope.load(trained / name / "step40")
    assert loaded.n_blocks == PLAN.blocks
    assert loaded.identity["bidirectional"] == (name == "mlm")
    assert loaded.tokenizer("The film")["input_ids"][0] == text.BOS


@pytest.mark.parametrize("name", architectures.NAMES)
def test_a_saved_model_is_the_trained_one(name: str, prepared: Path, tmp_path: Path) -> None:
    """Through transformers' own loading, with and without padding."""
    from transformers import AutoModelForCausalLM

    model = architectures.build(name, 300, 16, 2, 2, 24, seed=3).eval()
    training.save(model, text.read(prepared), tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    ids = torch.randint(4, 300, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, 9:] = 0
    with torch.no_grad():
        for extra in ({}, {"attention_mask": mask}):
            one, other = (m(input_ids=ids, **extra).logits[:, :9] for m in (model, again))
            torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-2)  # float16 weights
    assert architectures.sees_ahead(again, ids) == (name == "mlm")


def test_the_transformers_differ_in_the_mask_alone() -> None:
    one, other = (architectures.build(name, 300, 16, 2, 2, 24, seed=0) for name in ("ar", "mlm"))
    for (name, a), (same, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert name == same
        assert torch.equal(a, b)


def test_sizes_are_close() -> None:
    sizes = {
        name: architectures.size(architectures.build(name, 4096, 128, 12, 4, 128, 0))
        for name in architectures.NAMES
    }
    assert sizes["ar"] == sizes["mlm"]
    assert sizes["mamba"] == pytest.approx(sizes["ar"], rel=0.12)
    assert max(sizes.values()) * 2 < 8e6


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_scan_is_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA source, run on the CPU: loss and every gradient as transformers' loop gives them."""
    monkeypatch.setattr("layerscope_gpu.cuda.launch", launch)
    model = architectures.build("mamba", 300, 16, 2, 2, 24, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            )
    ids = torch.randint(4, 300, (3, 13), generator=torch.Generator().manual_seed(0))
    assert scan.checked(model, ids) < 1e-5


def test_packing(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = packing._size(trained / "ar" / "step0")
    monkeypatch.setattr(packing, "LARGEST", int(2.5 * size))
    monkeypatch.setattr(packing, "TOGETHER", int(7 * size))
    parts = packing.parts(trained)
    assert len(parts) == 2
    assert {folder.name for group in parts[0] for folder in group} >= {"step40"}
    for part in (1, 2):
        main(["--out", str(trained), "--pack", str(tmp_path / f"p{part}"), "--part", str(part)])
        assert (tmp_path / f"p{part}" / "log.csv").read_text().count("\n") == 1 + 3 * 4
        main(["--unpack", str(tmp_path / f"p{part}"), "--out", str(tmp_path / "again")])
    for name in architectures.NAMES:
        for step in (0, 10, 40):
            files = [
                root / name / f"step{step}" / "model.safetensors"
                for root in (trained, tmp_path / "again")
            ]
            assert files[0].read_bytes() == files[1].read_bytes()


def test_the_command(prepared: Path, tmp_path: Path) -> None:
    small = "--steps 3 --batch 4 --length 12 --width 16 --blocks 1 --heads 2 --checkpoints 0 --log-every 3"
    main(
        [
            "--text",
            str(prepared),
            "--out",
            str(tmp_path / "out"),
            *small.split(),
            "--models",
            "ar",
            "--pack",
            str(tmp_path / "p"),
        ]
    )
    assert [file.name for file in sorted((tmp_path / "p").iterdir())] == [
        "ar-step3-step0.tar",
        "log.csv",
    ]


def test_shipping(trained: Path, tmp_path: Path) -> None:
    main(["--out", str(trained), "--ship", str(tmp_path)])
    for name in architectures.NAMES:
        folder = tmp_path / name
        assert (folder / "model.safetensors").read_bytes() == (
            trained / name / "step40" / "model.safetensors"
        ).read_bytes()
        card = (folder / "README.md").read_text()
        assert f"# controlled-{name}" in card
        assert "for 40 steps" in card
        assert _log(trained / name)[-1]["held_out_loss"] in card
        loaded = layerscope.load(folder)
        assert loaded.identity["license"] == "Apache-2.0"
        assert f"{loaded.identity['parameters']:,} parameters" in card
