"""AIM in files: the key layout of the published safetensors, read and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from layerscope.errors import ModelError
from layerscope.models.architectures.aim import AimModel
from layerscope.models.architectures.aim_config import AimConfig, Attention

_HEADS = ("head.",)  # the published classifier, which pools the average of six layers: not part of the trunk


def read_aim(
    folder: Path,
    weights: Sequence[Path] | None = None,
    *,
    dtype: torch.dtype | None = None,
    attention: Attention | None = None,
    prefix: int | None = None,
) -> AimModel:
    """The model in a folder with config.json and safetensors, as published or as `write_aim` leaves it.

    `dtype` None keeps that of the files. Every weight of the trunk must be there; a classifier's are left out.
    """
    from safetensors.torch import load_file

    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = AimConfig.from_dict(facts, attention, prefix)
    files = sorted(folder.glob("*.safetensors")) if weights is None else list(weights)
    state = {key: value for file in files for key, value in load_file(file).items() if not key.startswith(_HEADS)}
    with torch.device("meta"):
        model = AimModel(config)
    wanted = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in state.items()}
    if wanted != found:
        raise ModelError(f"{folder} does not hold the AIM that its config.json describes: {_difference(wanted, found)}.")
    if dtype is not None:
        state = {key: value.to(dtype) for key, value in state.items()}
    model.load_state_dict(state, assign=True)
    return model


def write_aim(model: AimModel, folder: str | Path) -> Path:
    """Write config.json and model.safetensors in the published layout."""
    from safetensors.torch import save_file

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(model.config.to_dict(), indent=2) + "\n"
    (target / "config.json").write_text(text, encoding="utf-8")
    return target


def _difference(wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> str:
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing:
        return f"{len(missing)} weights are missing, such as {missing[0]}"
    if extra:
        return f"{len(extra)} weights have no place in it, such as {extra[0]}"
    key = next(key for key in sorted(wanted) if wanted[key] != found[key])
    return f"{key} is {found[key]}, not {wanted[key]}"
