"""TinyViT's third stage: windows against numpy, the map filled up, folders; the real weights at the
end."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from layerscope_zoo import tiny_vit
from layerscope_zoo.tiny_vit import TinyVitConfig, TinyVitModel, WindowAttention
from tiny_images import pictures

from layerscope.capture import Capture, expand_sites
from layerscope.capture.hooks import apply_norm
from layerscope.errors import LayerscopeError, ModelError
from layerscope.models import MODELS, load, wrap
from layerscope_media import ImageModel

SMALL = TinyVitConfig(
    image_size=64, widths=(8, 12, 16), depths=(1, 1, 3), heads=(1, 2, 2), windows=(2, 3, 3)
)


def small(seed: int = 0) -> TinyVitModel:
    torch.manual_seed(seed)
    model = TinyVitModel(SMALL).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "biases" in name or value.dim() == 1:
                value.add_(0.3 * torch.randn_like(value))
        for part in model.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model


def attention_reference(part: WindowAttention, x: np.ndarray, side: tuple[int, int]) -> np.ndarray:
    """Window by window and token by token in float64: places outside the map are zeros that are
    seen too."""
    w = {name: value.detach().double().numpy() for name, value in part.named_parameters()}
    height, across = side
    size, heads, width = part.window, part.heads, x.shape[-1]
    each = width // heads
    out = np.zeros_like(x)
    for top in range(0, height, size):
        for left in range(0, across, size):
            places = [(top + i, left + j) for i in range(size) for j in range(size)]
            tokens = np.stack(
                [
                    x[r * across + c] if r < height and c < across else np.zeros(width)
                    for r, c in places
                ]
            )
            centered = tokens - tokens.mean(-1, keepdims=True)
            normed = (
                centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * w["norm.weight"]
                + w["norm.bias"]
            )
            qkv = (normed @ w["qkv.weight"].T + w["qkv.bias"]).reshape(len(places), heads, 3 * each)
            parts = []
            for h in range(heads):
                q, k, v = (qkv[:, h, i * each : (i + 1) * each] for i in range(3))
                scores = q @ k.T / np.sqrt(each)
                for a, (r1, c1) in enumerate(places):
                    for b, (r2, c2) in enumerate(places):
                        scores[a, b] += w["attention_biases"][h, abs(r1 - r2) * size + abs(c1 - c2)]
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                parts.append(weights / weights.sum(-1, keepdims=True) @ v)
            mixed = np.concatenate(parts, -1) @ w["proj.weight"].T + w["proj.bias"]
            for place, (r, c) in enumerate(places):
                if r < height and c < across:
                    out[r * across + c] = mixed[place]
    return out


@pytest.mark.parametrize("side", [(3, 3), (4, 4), (6, 3), (5, 7)])
def test_windows_are_those_of_numpy(side: tuple[int, int]) -> None:
    part = small().double().get_submodule("layers.2.blocks.0.attn")
    assert isinstance(part, WindowAttention)
    x = np.random.default_rng(0).normal(size=(side[0] * side[1], 16))
    with torch.inference_mode():
        got = part(torch.from_numpy(x[None]), side)[0].numpy()
    np.testing.assert_allclose(got, attention_reference(part, x, side), rtol=1e-9, atol=1e-9)


def test_layers_are_the_blocks_of_the_third_stage() -> None:
    module = small()
    model = wrap(module)
    assert isinstance(model, ImageModel)
    assert (model.anatomy.family, model.n_blocks, model.width, model.anatomy.final_norm) == (
        "tiny_vit",
        3,
        16,
        None,
    )
    row = model.reader.read(pictures(1, side=64), [0])[0]
    model.check_layout(row)
    assert model.lengths([row]) == [16]
    kept: list[torch.Tensor] = []
    batch = model.make_batch([row])
    with Capture(model.anatomy, expand_sites(None, model.anatomy), "applied") as capture:
        capture.run(
            lambda: model.run(batch), lambda _i, raw, norm: kept.append(apply_norm(norm, raw))
        )
    with torch.inference_mode():
        own = module(batch.values, output_hidden_states=True)
    assert own.hidden_states is not None
    for mine, theirs in zip(kept, own.hidden_states, strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(kept[-1], own.last_hidden_state)


def test_taken_out_of_the_published_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights named as in the published file: the encoder's first three stages are kept, by name,
    and read again."""
    module = small()
    held = io.BytesIO()
    extra = {
        "image_encoder.layers.3.blocks.0.mlp.fc1.weight": torch.zeros(2),
        "mask_decoder.weight": torch.zeros(2),
    }
    torch.save({**{f"image_encoder.{k}": v for k, v in module.state_dict().items()}, **extra}, held)
    (tmp_path / "mobile_sam.pt").write_bytes(held.getvalue())
    monkeypatch.setattr(tiny_vit, "TinyVitConfig", lambda: SMALL)
    tiny_vit.convert_mobile_sam(tmp_path / "mobile_sam.pt", tmp_path / "folder")
    monkeypatch.undo()
    model = load(tmp_path / "folder")
    assert isinstance(model, ImageModel)
    assert model.processor.size == (64, 64)
    pixels = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(model.module(pixels).last_hidden_state, module(pixels).last_hidden_state)
    (tmp_path / "folder" / "config.json").write_text(
        '{"model_type": "tiny_vit_stage", "image_size": 64}'
    )
    with pytest.raises(ModelError, match=r"could not be loaded|lacks"):
        load(tmp_path / "folder")


@pytest.mark.slow
@pytest.mark.real
def test_real_weights_tell_clothes_apart() -> None:
    """Mean patch states of the last layer, nearest class mean: far above the tenth that chance
    gives."""
    from tiny_images import iterate_states

    from layerscope_media import load_images

    try:
        MODELS.get("mobile-sam").fetch()
        images = load_images("fashion-mnist", split="test", limit=120)
    except LayerscopeError as error:
        pytest.skip(str(error))
    model = load("mobile-sam", device="cpu")
    assert isinstance(model, ImageModel)
    assert model.identity["parameters"] == 2_438_784
    last = expand_sites(None, model.anatomy)[-1:]  # a few at a time: each has 4096 patches
    parts = [
        states[0].mean(1) for _, states in iterate_states(model, images, sites=last, batch_size=4)
    ]
    pooled = torch.cat(parts).double().numpy()
    pooled = (pooled - pooled.mean(0)) / pooled.std(0)
    labels = images.labels
    assert labels is not None
    centers = np.stack([pooled[:80][labels[:80] == k].mean(0) for k in range(10)])
    nearest = ((pooled[80:, None] - centers[None]) ** 2).sum(-1).argmin(-1)
    assert (nearest == labels[80:]).mean() > 0.4
