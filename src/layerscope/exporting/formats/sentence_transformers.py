"""The folder that sentence-transformers loads: tokenizer, and standard modules around the cut model.

The module files are written in the form that every version of sentence-transformers and most other servers read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import save_file

from layerscope.exporting.draft import POOLING_MODES, Draft, ExportFormat
from layerscope.models.settings import quiet
from layerscope.store import atomic

_OWN = "sentence_transformers.models"


def _write_modules(draft: Draft) -> None:
    folder, width = draft.folder, draft.model.width
    names = ["Transformer", "Pooling"]
    _write_transformer(draft)
    pooling = {f"pooling_mode_{name}": POOLING_MODES[draft.readout.pooling] == name for name in POOLING_MODES.values()}
    atomic.write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **pooling, "include_prompt": True}
    )
    if draft.mean is not None:
        names.append("Dense")
        _write_centering(folder / "2_Dense", draft.mean)
    if draft.unit:
        names.append("Normalize")
    write_pipeline(folder, [(f"{_OWN}.{name}", f"{i}_{name}" if i else "") for i, name in enumerate(names)])


def write_pipeline(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    """Write which modules a folder has, each with its class and its folder, and the settings of the whole."""
    for _, path in modules:
        (folder / path).mkdir(exist_ok=True)
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(modules)]
    atomic.write_json(folder / "modules.json", listed)
    settings: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    atomic.write_json(folder / "config_sentence_transformers.json", {"__version__": _versions(), **settings})


def _write_transformer(draft: Draft) -> None:
    settings: dict[str, Any] = {"max_seq_length": draft.framed.max_length, "do_lower_case": False}
    if draft.route.index is not None:
        output = ["hidden_states", draft.route.index]
        settings["modality_config"] = {"text": {"method": "forward", "method_output_name": output}}
        settings["module_output_name"] = "token_embeddings"
    atomic.write_json(draft.folder / "sentence_bert_config.json", settings)


def _write_centering(folder: Path, mean: np.ndarray) -> None:
    """Subtracting a mean as a dense layer: the identity as weights, and minus the mean as bias."""
    width = len(mean)
    folder.mkdir()
    settings = {
        "in_features": width,
        "out_features": width,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    atomic.write_json(folder / "config.json", settings)
    save_file(
        {"linear.weight": torch.eye(width), "linear.bias": torch.tensor(-mean, dtype=torch.float32)}, folder / "model.safetensors"
    )


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = {"sentence_transformers": "sentence-transformers", "transformers": "transformers", "pytorch": "torch"}
    return {name: version(package) for name, package in names.items()}


class SentenceTransformersFolder(ExportFormat):
    """Written for every export: the other formats are made from it, and it is what is verified."""

    name: ClassVar[str] = "sentence-transformers"
    summary: ClassVar[str] = "a folder that SentenceTransformer(path) and AutoModel.from_pretrained(path) load"

    def write(self, draft: Draft, options: Mapping[str, Any]) -> None:
        """The tokenizer's files and the modules."""
        with quiet():
            draft.framed.tokenizer.save_pretrained(draft.folder)
        _write_modules(draft)


FORMAT = SentenceTransformersFolder()
