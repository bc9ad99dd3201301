"""AIM: the paper's attention, the published key layout, and what goes wrong with a damaged
folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aim_published import APPLE_CONFIG, PUBLISHED, as_published
from safetensors.torch import load_file, save_file

from layerscope.errors import InvalidValueError, ModelError, UnknownNameError
from layerscope.models import load
from layerscope.models.families import declared_family
from layerscope_media import ImageModel
from layerscope_media.aim import (
    AimConfig,
    AimModel,
    attention_mask,
    sine_positions,
)

SMALL: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 24,
    "num_blocks": 2,
    "num_heads": 3,
}
PATCHES = 16


def reference(state: dict[str, torch.Tensor], image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The paper's forward pass in float64 numpy, patch by patch, written independently. Returns the
    normed last state."""
    w = {key: value.double().numpy() for key, value in state.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centered = x - x.mean(-1, keepdims=True)
        return (
            centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}.weight"]
            + w[f"{name}.bias"]
        )

    def gelu(x: np.ndarray) -> np.ndarray:
        from scipy.special import erf

        return 0.5 * x * (1 + erf(x / np.sqrt(2)))

    kernel = w["preprocessor.patchifier.proj.weight"].reshape(24, -1)
    patches = [
        image[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].reshape(-1)
        for i in range(4)
        for j in range(4)
    ]
    x = np.stack([kernel @ patch + w["preprocessor.patchifier.proj.bias"] for patch in patches])
    x = norm(x, "preprocessor.patchifier.norm")
    for place in range(PATCHES):
        row, column = divmod(place, 4)
        rates = [10000.0 ** (-d / 6) for d in range(6)]
        code = [f(at * r) for at in (column, row) for f in (np.sin, np.cos) for r in rates]
        x[place] += code
    for k in range(2):
        at = f"trunk.blocks.{k}"
        q, key, v = np.split(norm(x, f"{at}.norm_1") @ w[f"{at}.attn.qkv.weight"].T, 3, axis=-1)
        heads = []
        for h in range(3):
            part = slice(8 * h, 8 * h + 8)
            scores = np.where(mask, q[:, part] @ key[:, part].T / np.sqrt(8), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        x = x + np.concatenate(heads, -1) @ w[f"{at}.attn.proj.weight"].T
        x = (
            x
            + gelu(norm(x, f"{at}.norm_2") @ w[f"{at}.mlp.fc1.weight"].T)
            @ w[f"{at}.mlp.fc2.weight"].T
        )
    return norm(x, "trunk.post_trunk_norm")


def masks() -> dict[str, np.ndarray]:
    causal = np.tril(np.ones((PATCHES, PATCHES), dtype=bool))
    prefix = causal.copy()
    prefix[:, :5] = True
    return {"bidirectional": np.ones_like(causal), "causal": causal, "prefix:5": prefix}


@pytest.mark.parametrize("attention", ["bidirectional", "causal", "prefix:5"])
def test_published_layout_gives_the_papers_model(tmp_path: Path, attention: str) -> None:
    folder = as_published(tmp_path / "aim-600M")
    model = load(folder, attention=attention, dtype="float64")
    assert isinstance(model, ImageModel)
    assert model.identity["attention"] == attention
    image = np.random.default_rng(0).normal(size=(3, 16, 16))
    with torch.inference_mode():
        got = model.module(torch.from_numpy(image[None])).last_hidden_state[0].numpy()
    wanted = reference(load_file(folder / "model.safetensors"), image, masks()[attention])
    np.testing.assert_allclose(
        got, wanted, rtol=1e-6, atol=1e-6
    )  # the positions are made in float32


def test_published_models_are_read_both_ways_unless_told(tmp_path: Path) -> None:
    model = load(as_published(tmp_path / "aim"))
    assert model.identity["attention"] == "bidirectional"
    assert model.identity["bidirectional"] is True
    assert (model.n_blocks, model.width) == (2, 24)
    assert model.identity["processor_from"].startswith("none in")
    # the authors' evaluation: the shorter side to image / 0.875, the middle cut out
    assert model.processor.resize == 19
    assert model.processor.mean == (0.485, 0.456, 0.406)


def test_keys_are_those_that_are_published() -> None:
    state = AimModel(AimConfig(**SMALL)).state_dict()
    assert {key: tuple(value.shape) for key, value in state.items()} == PUBLISHED


@pytest.mark.parametrize("attention", ["bidirectional", "causal", "prefix"])
def test_round_trip(tmp_path: Path, attention: str) -> None:
    torch.manual_seed(0)
    config = AimConfig(**SMALL, attention=attention, prefix=3 if attention == "prefix" else None)
    model = AimModel(config).eval()
    model.save_pretrained(tmp_path / "saved")
    again = AimModel.from_pretrained(tmp_path / "saved").eval()
    assert again.config.to_dict() == config.to_dict()
    pixels = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        assert torch.equal(model(pixels).last_hidden_state, again(pixels).last_hidden_state)
    assert not any(parameter.is_meta for parameter in again.parameters())


@pytest.mark.parametrize("changed", range(PATCHES))
def test_causal_states_do_not_depend_on_what_follows(changed: int) -> None:
    torch.manual_seed(1)
    model = AimModel(AimConfig(**SMALL, attention="causal")).eval()
    pixels = torch.randn(1, 3, 16, 16)
    other = pixels.clone()
    row, column = divmod(changed, 4)
    other[..., 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1
    with torch.inference_mode():
        one, two = (model(x).last_hidden_state[0] for x in (pixels, other))
    same = (one == two).all(-1)
    assert same[:changed].all()
    assert not same[changed:].any()


def test_prefix_sees_itself_and_the_rest_what_came_before() -> None:
    mask = attention_mask(6, torch.tensor([0, 2, 6]), torch.device("cpu"))[:, 0]
    causal = torch.ones(6, 6).tril().bool()
    assert torch.equal(mask[0], causal)
    assert torch.equal(mask[2], torch.ones(6, 6).bool())
    assert mask[1, 0].tolist() == [True, True, False, False, False, False]
    assert mask[1, 3].tolist() == [True, True, True, True, False, False]


def test_positions_code_column_then_row() -> None:
    table = sine_positions(3, 5, 16)
    assert torch.equal(table[0, :8], table[5, :8])  # same column
    assert torch.equal(table[5, 8:], table[9, 8:])  # same row
    assert len({tuple(row.tolist()) for row in table}) == 15


def test_what_a_damaged_folder_says(tmp_path: Path) -> None:
    folder = as_published(tmp_path / "aim")
    state = load_file(folder / "model.safetensors")
    lacking = {key: value for key, value in state.items() if key != "trunk.blocks.1.mlp.fc2.weight"}
    save_file(lacking, folder / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"lacks 1 weights of AimModel.*e\.g\. trunk\.blocks\.1\.mlp\.fc2"
    ):
        load(folder)
    save_file(
        {**state, "trunk.blocks.2.norm_1.weight": torch.zeros(24)}, folder / "model.safetensors"
    )
    with pytest.raises(ModelError, match="1 of its own have no place there"):
        load(folder)
    save_file(
        {**state, "trunk.post_trunk_norm.bias": torch.zeros(25)}, folder / "model.safetensors"
    )
    with pytest.raises(ModelError, match="could not be loaded from"):
        load(folder)


def test_attention_is_checked(tmp_path: Path) -> None:
    folder = as_published(tmp_path / "aim")
    for wrong in ("sideways", "prefix", "causal:3"):
        with pytest.raises(InvalidValueError, match="bidirectional, causal or prefix:N"):
            load(folder, attention=wrong)
    with pytest.raises(ModelError, match="prefix is 99 patches"):
        load(folder, attention="prefix:99")
    with pytest.raises(UnknownNameError):
        AimConfig(**SMALL, attention="sideways")  # type: ignore[arg-type]


def test_which_configs_are_aims() -> None:
    for config in (APPLE_CONFIG, {"config": APPLE_CONFIG}, AimConfig(**SMALL).to_dict()):
        assert declared_family(config).name == "aim"
    assert declared_family({"model_type": "vit", **APPLE_CONFIG}).name == "vit"
    assert declared_family({"embed_dim": 3}).name == "generic"
    assert AimConfig.from_dict({"config": APPLE_CONFIG}).to_dict() == AimConfig(**SMALL).to_dict()
