"""The three models. (a) and (b) are the same GPT-NeoX (Pythia) blocks from the same first weights;
only (b) sees both sides.

(c) has as many Mamba blocks of the same width, widened inside until its size is about the
transformers'.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from controlled_set.text import BOS, EOS, PAD

NAMES = ("ar", "mlm", "mamba")


def build(
    name: str, vocabulary: int, width: int, blocks: int, heads: int, length: int, seed: int
) -> nn.Module:
    """A new model with its head (tied to the embeddings), from a seed."""
    import transformers as hf

    shared: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": blocks, "pad_token_id": PAD,
        "bos_token_id": BOS, "eos_token_id": EOS, "tie_word_embeddings": True, "use_cache": False,
    }  # fmt: skip
    torch.manual_seed(seed)
    if name == "mamba":
        return hf.MambaForCausalLM(
            hf.MambaConfig(**shared, state_size=16, expand=3, initializer_range=0.02)
        )
    config = hf.GPTNeoXConfig(
        **shared,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=max(512, length),
    )
    model = hf.GPTNeoXForCausalLM(config)
    if name == "mlm":
        see_both_sides(model)
    return model


def see_both_sides(model: nn.Module) -> None:
    """Take the causal mask away. The config keeps it, so that a saved model is read the same
    way."""
    model.config.is_causal = False
    # Attention without a mask asks its own module whether it is causal.
    for part in model.modules():
        if isinstance(getattr(part, "is_causal", None), bool):
            part.is_causal = False


@torch.no_grad()
def sees_ahead(model: nn.Module, ids: Tensor) -> bool:
    """Whether the first token's prediction depends on the last token."""
    model.eval()
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % model.config.vocab_size
    first = [model(input_ids=x).logits[:, 0] for x in (ids, other)]
    model.train()
    return not torch.equal(*first)


def size(model: nn.Module) -> int:
    """Parameters, the tied ones once."""
    return sum(p.numel() for p in model.parameters())
