"""A tiny AIM as Apple publishes its models: the keys of its weights and its config."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

# The keys of apple/aim-600M, with the sizes of the tiny model.
PUBLISHED = {
    "preprocessor.patchifier.proj.weight": (24, 3, 4, 4),
    "preprocessor.patchifier.proj.bias": (24,),
    "preprocessor.patchifier.norm.weight": (24,),
    "preprocessor.patchifier.norm.bias": (24,),
    **{
        f"trunk.blocks.{k}.{name}": shape
        for k in range(2)
        for name, shape in {
            "attn.qkv.weight": (72, 24),
            "attn.proj.weight": (24, 24),
            "norm_1.weight": (24,),
            "norm_1.bias": (24,),
            "mlp.fc1.weight": (96, 24),
            "mlp.fc2.weight": (24, 96),
            "norm_2.weight": (24,),
            "norm_2.bias": (24,),
        }.items()
    },
    "trunk.post_trunk_norm.weight": (24,),
    "trunk.post_trunk_norm.bias": (24,),
}
HEAD = {
    "head.k.weight": (24, 24),
    "head.v.weight": (24, 24),
    "head.cls_token": (1, 1, 24),
    "head.linear.weight": (1000, 24),
    "head.bn.running_mean": (24,),
    "head.bn.running_var": (24,),
    "head.bn.num_batches_tracked": (),
}
APPLE_CONFIG = {
    "embed_dim": 24, "img_size": 16, "num_blocks": 2, "num_channels": 3, "num_classes": 1000, "num_heads": 3, "patch_size": 4,
    "probe_layers": [0, 1],
}  # fmt: skip


def as_published(folder: Path, seed: int = 0) -> Path:
    """A folder laid out as Apple's: the trunk, the classifier, a config without a model type."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    state = {
        key: 0.3 * torch.randn(shape, generator=generator)
        for key, shape in {**PUBLISHED, **HEAD}.items()
    }
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(APPLE_CONFIG))
    return folder
