"""TinyViT in files: taken out of MobileSAM's published weights, written, read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from layerscope.data.images.preparation import IMAGENET_MEAN, IMAGENET_STD, PixelPreparation
from layerscope.errors import ModelError
from layerscope.models.architectures.tiny_vit import TinyVitConfig, TinyVitModel

_PREFIX = "image_encoder."


def convert_mobile_sam(file: Path, into: Path) -> None:
    """Write the image encoder of MobileSAM's published weights, up to the third stage, as a folder."""
    weights = torch.load(file, map_location="cpu", weights_only=True)
    config = TinyVitConfig()
    wanted = TinyVitModel(config).state_dict()
    state = {key: weights[f"{_PREFIX}{key}"] for key in wanted if f"{_PREFIX}{key}" in weights}
    model = TinyVitModel(config)
    model.load_state_dict(state)
    write_tiny_vit(model, into)
    height = config.image_size
    PixelPreparation((height, height), 3, IMAGENET_MEAN, IMAGENET_STD, resample="bilinear").save_pretrained(into)


def write_tiny_vit(model: TinyVitModel, folder: Path) -> Path:
    """Write config.json and model.safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.config.to_dict(), indent=2) + "\n", encoding="utf-8")
    return folder


def read_tiny_vit(folder: Path, weights: Sequence[Path], dtype: torch.dtype | None = None) -> TinyVitModel:
    """The model in such a folder."""
    from safetensors.torch import load_file

    model = TinyVitModel(TinyVitConfig.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    state = {key: value for file in weights for key, value in load_file(file).items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(f"{folder} does not hold the TinyViT that its config.json describes: {error}") from error
    return model if dtype is None else model.to(dtype)
