"""Tiny image models of every family, built in memory from a config, and a few pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import Tensor, nn

from layerscope.capture import Capture, FinalNorm, Site, expand_sites
from layerscope.capture.hooks import apply_norm
from layerscope.models import wrap
from layerscope_media import ImageModel, ImageSet
from layerscope_media.aim import AimConfig, AimModel
from layerscope_media.pixels import PixelReader

SIDE, PATCH, WIDTH, BLOCKS = 32, 8, 32, 3
PATCHES = (SIDE // PATCH) ** 2
_SIZES: dict[str, Any] = {
    "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH,
}  # fmt: skip
_PLAIN = {**_SIZES, "intermediate_size": 48}
_AIM: dict[str, Any] = {
    "img_size": SIDE,
    "patch_size": PATCH,
    "embed_dim": WIDTH,
    "num_blocks": BLOCKS,
    "num_heads": 4,
}


def _make(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(hf, model)(getattr(hf, config)(**settings))


_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "vit": _make("ViTModel", "ViTConfig", **_PLAIN),
    "clip": _make("CLIPVisionModel", "CLIPVisionConfig", **_PLAIN),
    "siglip": _make("SiglipVisionModel", "SiglipVisionConfig", **_PLAIN),
    "beit": _make(
        "BeitModel",
        "BeitConfig",
        **_PLAIN,
        layer_scale_init_value=0.1,
        use_relative_position_bias=True,
    ),
    "beit_class": _make(
        "BeitModel", "BeitConfig", **_PLAIN, layer_scale_init_value=0.1, use_mean_pooling=False
    ),
    "beit_unscaled": _make("BeitModel", "BeitConfig", **_PLAIN, layer_scale_init_value=0.0),
    "dinov2": _make("Dinov2Model", "Dinov2Config", **_SIZES),
    "dinov2_with_registers": _make(
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", **_SIZES, num_register_tokens=3
    ),
    "vit_mae": _make("ViTMAEModel", "ViTMAEConfig", **_PLAIN),
    "aimv2": _make("Aimv2VisionModel", "Aimv2VisionConfig", **_PLAIN),
    "imagegpt": _make(
        "ImageGPTModel",
        "ImageGPTConfig",
        n_embd=WIDTH,
        n_layer=BLOCKS,
        n_head=4,
        n_positions=PATCHES,
        vocab_size=9,
    ),
    "aim": lambda: AimModel(AimConfig(**_AIM)),
    "aim_causal": lambda: AimModel(AimConfig(**_AIM, attention="causal")),
    "aim_prefix": lambda: AimModel(AimConfig(**_AIM, attention="prefix", prefix=5)),
}

IMAGE_FAMILIES = tuple(_BUILDERS)


def build(name: str, seed: int = 0) -> nn.Module:
    """The module, with every parameter random, so that no norm or scale is the identity by
    chance."""
    torch.manual_seed(seed)
    module = _BUILDERS[name]().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() <= 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        for key, parameter in module.named_parameters():
            if "token" in key or "position" in key:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def processor(name: str) -> Any:
    """The processor that goes with a tiny model: None stands for the default."""
    if name != "imagegpt":
        return None
    palette = np.random.default_rng(0).uniform(-1, 1, (8, 3))
    return hf.ImageGPTImageProcessorPil(clusters=palette, size={"height": 4, "width": 4})


def tiny_image_model(name: str, seed: int = 0) -> ImageModel:
    """The model, ready to be read."""
    model = wrap(build(name, seed), processor(name), name=name)
    assert isinstance(model, ImageModel)
    return model


def pictures(count: int = 6, seed: int = 0, side: int = SIDE) -> ImageSet:
    """Smooth color pictures with a label each; no two alike."""
    rng = np.random.default_rng(seed)
    at = np.linspace(0, 3, side)
    items = []
    for _ in range(count):
        waves = rng.uniform(0.5, 3, (3, 2))
        values = [
            np.sin(a * at[:, None] + rng.uniform(0, 6)) * np.cos(b * at[None] + rng.uniform(0, 6))
            for a, b in waves
        ]
        noise = rng.normal(0, 0.1, (side, side, 3))
        items.append(np.clip((np.stack(values, -1) + noise + 1) * 127, 0, 255).astype(np.uint8))
    return ImageSet.of(items, labels=np.arange(count) % 3, name="pictures")


_BATCH = 32


def iterate_states(
    model: ImageModel,
    images: ImageSet,
    *,
    sites: Sequence[Site] | None = None,
    final_norm: FinalNorm = "applied",
    tokens: str = "patches",
    batch_size: int | None = None,
    indices: Sequence[int] | None = None,
    reader: PixelReader | None = None,
) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of some images and their states (sites, images, tokens, D), one batch after the
    other, in the given order.

    `tokens` is `patches` or `all`. Without `sites`: layer 0 to L. A `reader` of one's own may go
    through the images repeatedly.
    """
    wanted = list(sites) if sites is not None else expand_sites(None, model.anatomy)
    order = list(range(len(images)) if indices is None else indices)
    size = batch_size or _BATCH
    kept: dict[int, Tensor] = {}
    skip = 0

    def read(index: int, raw: Tensor, norm: nn.Module | None) -> None:
        kept[index] = apply_norm(norm, raw)[:, skip:]

    own = PixelReader(model.processor) if reader is None else reader
    try:
        with Capture(model.anatomy, wanted, final_norm) as capture:
            for start in range(0, len(order), size):
                part = [int(i) for i in order[start : start + size]]
                batch = model.make_batch(own.read(images, part), tokens)
                skip = batch.skip
                capture.run(lambda batch=batch: model.run(batch), read)  # type: ignore[misc]
                yield part, torch.stack([kept[i] for i in range(len(wanted))])
                kept.clear()
    finally:
        if reader is None:
            own.close()
