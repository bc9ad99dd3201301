"""Reading a model by hand, without layerscope's capture and pooling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from layerscope.core.readout import Readout
from layerscope.exporting.draft import Draft, ExportRequest, verification_texts
from layerscope.exporting.job import Exported, write_export
from layerscope.exporting.pipeline import write_draft
from layerscope.models import LoadedModel, wrap
from tests.evaluation.support import PATTERNS, pool_by_hand, read_by_hand
from tests.tiny import build_tiny

TEXTS = [
    "a short one",
    'He said: "No."',
    "the quick brown fox jumps over a lazy dog while seven wizards mix odd potions",
    "?",
    "Two lines.\nAnd an end without a stop",
]


MEAN = np.linspace(-1, 1, 32)


def draft_of(model: LoadedModel, layer: int, readout: str, folder: Path, **options: Any) -> Draft:
    """Return a written folder that is not verified."""
    return write_draft(_request(model, layer, readout, verification_texts(), **options), folder)


def brief_export(
    model: LoadedModel, layer: int, readout: str, place: Path, overwrite: bool = False
) -> Exported:
    """Return an export that is verified on a few short texts."""
    request = _request(model, layer, readout, verification_texts(brief=True))
    return write_export(request, place, overwrite)


def _request(
    model: LoadedModel, layer: int, readout: str, texts: list[str], **options: Any
) -> ExportRequest:
    settings = {"max_length": 120, **options}
    return ExportRequest(model, layer, Readout.parse(readout), tuple(texts), **settings)


def vectors_by_hand(
    model: LoadedModel, family: str, layer: int, readout: str, texts: list[str]
) -> np.ndarray:
    """Return vectors by one forward pass per text, hidden states and numpy."""
    template, pooling, norm, *_ = readout.split("/")
    rows = []
    for text in texts:
        ids = model.tokenizer(PATTERNS[template].replace("{text}", text))["input_ids"]
        raw, normed = read_by_hand(model, ids, family)
        states = normed if norm == "applied" else raw
        rows.append(pool_by_hand(raw[layer], states[layer], (0, len(ids)), pooling, False))
    return np.stack(rows)


def finish_by_hand(vectors: np.ndarray, readout: str, unit: bool) -> np.ndarray:
    """Return vectors less `MEAN` if the readout centers, and of length 1 with `unit`."""
    centered = vectors - MEAN if readout.endswith("corpus") else vectors
    return centered / np.linalg.norm(centered, axis=1, keepdims=True) if unit else centered


def joining_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes in which a full stop and a quote are one token.

    It puts a token of its own before every text.
    """
    special = ["<pad>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*special, *alphabet, '."']
    core = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(words)}, merges=[(".", '"')])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def joining_model() -> LoadedModel:
    """Return a tiny Llama with the joining tokenizer."""
    module = build_tiny("llama")
    module.resize_token_embeddings(263)
    module.embed_tokens.weight.data[262] = torch.linspace(-0.5, 0.5, 32)  # made at random otherwise
    return wrap(module, joining_tokenizer(), name="tiny-joining")
