"""The three models of the controlled set, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

OBJECTIVES = ("ar", "mlm", "mamba")
SPECIAL = ("<pad>", "<s>", "</s>", "<mask>")
PAD, BOS, EOS, MASK = range(4)


def build(
    objective: str, vocabulary: int, width: int, blocks: int, heads: int, length: int, seed: int
) -> nn.Module:
    """Build a model with its head, which is tied to the embeddings.

    `mamba` has as many blocks of the same width, expanded inside to about the transformers' size.
    """
    import transformers

    shared: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": blocks,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": True,
        "use_cache": False,
    }
    torch.manual_seed(seed)
    if objective == "mamba":
        config = transformers.MambaConfig(**shared, state_size=16, expand=3, initializer_range=0.02)
        return transformers.MambaForCausalLM(config)
    model = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            **shared,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            max_position_embeddings=max(512, length),
        )
    )
    if objective == "mlm":
        # in the config, so that a saved model is loaded the same way, and in the modules, which
        # attention without a mask reads
        model.config.is_causal = False
        for module in model.modules():
            if isinstance(getattr(module, "is_causal", None), bool):
                module.is_causal = False
    return model
