"""Tiny sentence encoders in folders of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from layerscope.blocks import Encoder
from tests.tiny import build_tiny, tiny_tokenizer, write_pooling

TEXTS = [
    f"{subject} {verb} the {thing} {when}"
    for subject in ("I", "my brother", "the bank", "nobody")
    for verb in ("lost", "wants", "blocked", "paid for")
    for thing in ("card", "old red car", "account", "ticket to the sea")
    for when in ("today", "again last week")
]


def write_tiny(folder: Path, family: str, module: Any = None, pooling: str = "mean_tokens") -> Path:
    """Write a tiny model of a family as a sentence encoder."""
    model = build_tiny(family) if module is None else module
    model.save_pretrained(folder)
    encoder = family not in ("llama", "qwen2", "gpt2", "gpt_neox", "gemma3")
    tiny_tokenizer(encoder).save_pretrained(folder)
    write_pooling(folder, model.config.hidden_size, pooling)
    return folder


def idle_block(family: str, idle: int = 1) -> Any:
    """A tiny pre-norm model with a block that adds nothing."""
    module = build_tiny(family)
    with torch.no_grad():
        for name, value in module.layers[idle].named_parameters():
            if "norm" not in name:
                value.zero_()
    return module


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("bert") / "tiny-bert", "bert")


@pytest.fixture
def bert(bert_folder: Path) -> Encoder:
    return Encoder.open(bert_folder, "cpu")
