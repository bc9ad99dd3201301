"""The vision set on the CPU, with tiny settings."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from train_vision_set import main
from vision_set import images, objectives
from vision_set.loop import Recipe, train

import layerscope
from layerscope_media.aim import AimConfig, AimModel

TINY = [
    "--width",
    "16",
    "--blocks",
    "2",
    "--heads",
    "2",
    "--steps",
    "4",
    "--batch",
    "8",
    "--device",
    "cpu",
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("images") / "images.npz"
    main(["--prepare", str(file), "--data", "digits"])
    return file


def test_images_survive_their_file(prepared: Path) -> None:
    held, fresh = images.read(prepared, "digits"), images.fetch("digits")
    for field in ("train", "train_labels", "test", "test_labels"):
        np.testing.assert_array_equal(getattr(held, field), getattr(fresh, field))
    assert len(held.train) + len(held.test) == 1797
    assert held.size == 8
    assert np.bincount(held.test_labels).min() >= 40
    assert not {x.tobytes() for x in held.train} & {x.tobytes() for x in held.test}


def test_train_read_and_load_again(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--images", str(prepared), "--data", "digits", "--limit", "80", "--out", str(out)]
    main([*words, *TINY, "--probe", "--probe-epochs", "2", "--profile", "12"])
    files = sorted(p.name for p in out.iterdir())
    assert files == ["items.npz", "models.zip", "probe.csv", "profile.csv", "training.json"]
    table = pd.read_csv(out / "probe.csv")
    assert set(table["objective"]) == {"supervised", "mae", "ar"}
    assert set(table["layer"]) == {0, 1, 2}
    facts = json.loads((out / "training.json").read_text())["models"]
    trunks = [found["trunk_parameters"] for found in facts.values()]
    assert max(trunks) / min(trunks) < 1.1, "one size for all three"
    assert (
        len({(found["recipe"]["steps"], found["recipe"]["batch"]) for found in facts.values()}) == 1
    )
    with zipfile.ZipFile(out / "models.zip") as archive:
        archive.extractall(tmp_path / "models")
    families = {}
    for folder in sorted((tmp_path / "models").iterdir()):
        model = layerscope.load(folder)
        families[folder.name] = model.identity["family"]
        assert model.n_blocks == 2
        assert (folder / "preprocessor_config.json").is_file()
        assert model.processor.mean == pytest.approx((facts[folder.name]["pixels"]["mean"],))  # type: ignore[attr-defined]
    assert families == {"digits-ar": "aim", "digits-mae": "vit_mae", "digits-supervised": "vit"}
    assert all(p.dtype == torch.float32 for p in model.module.parameters()), (
        "half precision is for the files only"
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "ar" else pytest.mark.slow)
        for name in objectives.OBJECTIVES
    ],
)
def test_training_is_seeded_and_learns(prepared: Path, name: str) -> None:
    held = images.read(prepared, "digits").part(64)
    size = objectives.Size(8, 2, 10, width=16, blocks=2, heads=2)

    def weights(seed: int, steps: int) -> tuple[torch.Tensor, list[float]]:
        recipe = Recipe(steps, 16, rate=3e-3, seed=seed)
        found, facts = train(
            lambda: objectives.OBJECTIVES[name](size),
            held,
            recipe,
            torch.device("cpu"),
            say=lambda line: None,
        )
        return torch.cat([p.detach().flatten() for p in found.trunk.parameters()]), [
            loss for _, loss in facts["losses"]
        ]

    one = weights(0, 8)[0]
    assert torch.equal(one, weights(0, 8)[0])
    assert not torch.equal(one, weights(1, 8)[0])
    losses = weights(0, 40)[1]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def test_augmentation_moves_images_whole() -> None:
    pixels = torch.arange(2 * 36, dtype=torch.float32).view(2, 1, 6, 6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        moved = images.augmented(pixels, False, 1, generator)
        inner = [pixels[:, 0, 1 + a : 5 + a, 1 + b : 5 + b] for a in (-1, 0, 1) for b in (-1, 0, 1)]
        for i in range(2):
            assert any(torch.equal(moved[i, 0, 1:5, 1:5], part[i]) for part in inner)
    flipped = torch.stack([images.augmented(pixels, True, 0, generator) for _ in range(20)])
    assert any(torch.equal(x[0, 0], pixels[0, 0].flip(1)) for x in flipped)


def test_loss_is_over_the_patches_after_the_prefix() -> None:
    torch.manual_seed(0)
    pixels = torch.randn(2, 3, 16, 16)
    targets = objectives.patch_targets(pixels, 4)
    assert targets.shape == (2, 16, 48)
    torch.testing.assert_close(targets.mean(-1), torch.zeros(2, 16), atol=1e-5, rtol=0)
    first = pixels[0, :, 0:4, 4:8].reshape(-1)
    torch.testing.assert_close(
        targets[0, 1], (first - first.mean()) / first.std(unbiased=False), rtol=1e-4, atol=1e-4
    )
    predicted = torch.randn_like(targets)
    errors = ((predicted[:, :-1] - targets[:, 1:]) ** 2).mean(-1)
    torch.testing.assert_close(objectives.pixel_loss(predicted, targets), errors.mean())
    prefix = torch.tensor([1, 10])
    wanted = (errors[0].sum() + errors[1, 9:].sum()) / (15 + 6)
    torch.testing.assert_close(objectives.pixel_loss(predicted, targets, prefix), wanted)


def test_the_pixel_head_learns() -> None:
    """A few steps on one batch: the head and the trunk get gradients, and the error falls."""
    torch.manual_seed(0)
    config = AimConfig(
        img_size=16, patch_size=4, embed_dim=24, num_blocks=2, num_heads=3, attention="prefix"
    )
    model, head = AimModel(config), objectives.AimPixelHead(config)
    pixels, prefix = torch.randn(4, 3, 16, 16).cumsum(-1), torch.tensor([1, 2, 4, 8])
    targets = objectives.patch_targets(pixels, 4)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=3e-3)
    losses = []
    for _ in range(30):
        loss = objectives.pixel_loss(head(model(pixels, prefix).last_hidden_state), targets, prefix)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is not None for parameter in model.trunk["blocks"].parameters())
