"""The families of image models (ViT and similar ones, the image models of CLIP and SigLIP,
autoregressive ones) and of speech models (wav2vec 2.0, HuBERT and the encoder of Whisper).

A new family is one more entry here, or an entry point `layerscope.families` of another package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture import Anatomy
from layerscope.errors import InvalidValueError
from layerscope.models import pre_norm_taps
from layerscope_media.image_family import GenericImageFamily, ImageFamily
from layerscope_media.sound_model import SoundFamily

# ViT (Dosovitskiy et al. 2021), supervised or not: one class token, pre-norm blocks, a norm after
# the last.
VIT = ImageFamily(
    name="vit",
    model_types=("vit",),
    blocks="layers|encoder.layer",
    final_norm="layernorm",
    taps=pre_norm_taps("layernorm_before", "attention", "layernorm_after", "mlp|output.dense"),
    residual="sequential",
    bidirectional=True,
    class_token=True,
    hf_norms_last=False,
)


# ViT-MAE (He et al. 2022): the encoder, without masking or shuffling.
class MaeFamily(ImageFamily):
    """ViT-MAE's encoder without the masking and shuffling of patches, which serve training."""

    def call(self, module: nn.Module, pixels: Tensor) -> Any:
        """Run with mask ratio 0 and with noise that rises along the patches, which keeps their
        order."""
        config: Any = module.config
        embeddings: Any = module.embeddings
        patches = int(embeddings.patch_embeddings.num_patches)
        noise = torch.arange(patches, device=pixels.device, dtype=torch.float32).expand(
            len(pixels), -1
        )
        ratio = config.mask_ratio
        config.mask_ratio = 0.0
        try:
            return module(pixel_values=pixels, noise=noise)
        finally:
            config.mask_ratio = ratio  # the module belongs to the user


VIT_MAE = MaeFamily(
    **vars(
        replace(
            VIT,
            name="vit_mae",
            model_types=("vit_mae",),
            notes="no patch is masked or moved",
        )
    )
)

# DINOv2 (Oquab et al. 2023): a class token, and a layer scale on each branch; branches are read
# after it.
DINOV2 = replace(
    VIT,
    name="dinov2",
    model_types=("dinov2",),
    blocks="encoder.layer|layers",
    taps=pre_norm_taps("norm1", "layer_scale1", "norm2", "layer_scale2"),
    notes="branches are read after their layer scale",
)

# DINOv2 with registers (Darcet et al. 2024): the class token, then the registers, then the patches.
DINOV2_WITH_REGISTERS = replace(
    DINOV2,
    name="dinov2_with_registers",
    model_types=("dinov2_with_registers",),
    registers=lambda config: int(config.num_register_tokens),
)

# BEiT (Bao et al. 2022): a class token, and a layer scale that each block applies by itself.
#
# A model that pools over patches (`use_mean_pooling`) norms only the pooled vector, so it has no
# final norm. The others norm every token after the last block.
BEIT = replace(
    VIT,
    name="beit",
    model_types=("beit",),
    final_norm=lambda config: None if config.use_mean_pooling else "layernorm",
    taps=pre_norm_taps(
        "layernorm_before", "attention * lambda_1", "layernorm_after", "mlp|output * lambda_2"
    ),
    notes="branches are read after their layer scale",
)

# CLIP's image model (Radford et al. 2021).  A norm comes before the first block, so layer 0 is
# normed. The model applies the norm after the last block to the class token alone, and `applied`
# does the same at every layer.
CLIP = replace(
    VIT,
    name="clip",
    model_types=("clip_vision_model",),
    blocks="encoder.layers|vision_model.encoder.layers",
    final_norm="post_layernorm|vision_model.post_layernorm",
    taps=pre_norm_taps("layer_norm1", "self_attn", "layer_norm2", "mlp"),
    class_norm_only=True,
    loads="CLIPVisionModel",
    containers=("clip",),
    notes="the model applies its final norm to the class token only, not to patches",
)

# SigLIP's image model (Zhai et al. 2023): no class token; its pooling head is not used.
SIGLIP = replace(
    CLIP,
    name="siglip",
    model_types=("siglip_vision_model",),
    class_token=False,
    class_norm_only=False,
    loads="SiglipVisionModel",
    containers=("siglip",),
    notes="",
)

# AIMv2's image model (Fini et al. 2024): no class token, bidirectional; its pooling head is not
# used.
AIMV2 = replace(
    VIT,
    name="aimv2",
    model_types=("aimv2_vision_model",),
    blocks="encoder.layers",
    final_norm="rms_norm",
    taps=pre_norm_taps("rms_norm1", "attention", "rms_norm2", "ffn"),
    class_token=False,
    loads="Aimv2VisionModel",
    containers=("aimv2",),
)

ATTENTIONS = ("bidirectional", "prefix", "causal")
"""The attention patterns of an AIM."""

_AIM_SIZES = ("embed_dim", "num_blocks", "num_heads", "patch_size")


# AIM (El-Nouby et al. 2024), the autoregressive image model: no class token, a norm after the last
# block.
class AimFamily(ImageFamily):
    """AIM, whose attention pattern is a setting of the loaded model (`attention=`); the
    architecture is in `aim.py`."""

    def declares(self, config: Mapping[str, Any]) -> bool:
        """Return True for a config of an AIM; the published ones have no model type, but its
        keys."""
        inner = config["config"] if isinstance(config.get("config"), Mapping) else config
        named = config.get("model_type") or inner.get("model_type")
        return named == "aim" or (named is None and all(key in inner for key in _AIM_SIZES))

    def choose_attention(self, module: nn.Module, attention: str) -> None:
        """Set `bidirectional`, `causal` or `prefix:N`."""
        kind, _, count = attention.partition(":")
        if kind not in ATTENTIONS or (kind == "prefix") != count.isdigit():
            raise InvalidValueError(
                f"attention is {attention!r}; give bidirectional, causal or prefix:N (N patches)."
            )
        config: Any = module.config
        config.set_attention(kind, int(count) if count else None)

    def is_bidirectional(self, module: nn.Module) -> bool:
        config: Any = module.config
        return config.attention == "bidirectional"

    def own_identity(self, module: nn.Module) -> dict[str, Any]:
        config: Any = module.config
        prefix = f":{config.prefix}" if config.attention == "prefix" else ""
        return {"attention": f"{config.attention}{prefix}"}


AIM = AimFamily(
    **vars(
        replace(
            VIT,
            name="aim",
            model_types=("aim",),
            blocks="trunk.blocks",
            final_norm="trunk.post_trunk_norm",
            taps=pre_norm_taps("norm_1", "attn", "norm_2", "mlp"),
            bidirectional=False,
            class_token=False,
            loads="layerscope_media.aim:AimModel",
            attentions=ATTENTIONS,
        )
    )
)


# ImageGPT (Chen et al. 2020): pixels as palette indices in raster order, with causal attention.
class ImageGptFamily(ImageFamily):
    """ImageGPT: GPT-2 on token ids, one per pixel, which the processor makes."""

    def call(self, module: nn.Module, pixels: Tensor) -> Any:
        """Run a model on palette indices (B, pixels)."""
        return module(input_ids=pixels, use_cache=False)


IMAGEGPT = ImageGptFamily(
    name="imagegpt",
    model_types=("imagegpt",),
    blocks="h",
    final_norm="ln_f",
    taps=pre_norm_taps("ln_1", "attn", "ln_2", "mlp"),
    residual="sequential",
    notes="tokens are pixels, without a start token",
)

# Any other image model.
GENERIC_IMAGES = GenericImageFamily(
    name="generic-images", model_types=(), blocks="", final_norm=None
)

_BEFORE = SoundFamily(
    name="wav2vec2",
    model_types=("wav2vec2", "hubert"),
    blocks="encoder.layers",
    final_norm="encoder.layer_norm",
    taps=pre_norm_taps("layer_norm", "attention", "final_layer_norm", "feed_forward"),
    residual="sequential",
    bidirectional=True,
)
# The base models norm after each sum; their encoder's norm comes before the first block.
_AFTER = replace(
    _BEFORE,
    final_norm=None,
    taps={"attn": "attention", "mid": "layer_norm", "mlp": "feed_forward"},
    residual="post-norm",
)


class Wav2Vec2Family(SoundFamily):
    """wav2vec 2.0 and HuBERT, with norms before the branches (large models) or after the sums (base
    models), as the config says."""

    def resolve(self, module: nn.Module) -> Anatomy:
        """Return the anatomy for the config's `do_stable_layer_norm`."""
        stable = getattr(getattr(module, "config", None), "do_stable_layer_norm", False)
        return (_BEFORE if stable else _AFTER).resolve(module)


WAV2VEC2 = Wav2Vec2Family(
    **vars(
        replace(
            _AFTER,
            notes="one sound at a time: padding would change the states of models that norm over "
            "time",
        )
    )
)

WHISPER = replace(
    _BEFORE,
    name="whisper",
    model_types=("whisper",),
    blocks="layers",
    final_norm="layer_norm",
    taps=pre_norm_taps("self_attn_layer_norm", "self_attn", "final_layer_norm", "fc2"),
    notes="the encoder; sounds are padded to its window, and only their own frames are read",
)

FAMILIES = (
    VIT,
    VIT_MAE,
    DINOV2,
    DINOV2_WITH_REGISTERS,
    BEIT,
    CLIP,
    SIGLIP,
    AIMV2,
    AIM,
    IMAGEGPT,
    WAV2VEC2,
    WHISPER,
    GENERIC_IMAGES,
)
