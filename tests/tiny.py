"""Tiny models of every family, built in memory from a config, and a tokenizer that takes any
English text."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn

from layerscope.models import LoadedModel, wrap

VOCAB = 262  # 256 bytes and six special tokens
PAD, BOS, EOS, CLS, SEP, MASK = range(6)
_IDS = {"vocab_size": VOCAB, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
_LLAMA = {
    **_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
}  # fmt: skip
_PLAIN = {
    **_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
_MAMBA = {**_IDS, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8}


def _make(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(hf, model)(getattr(hf, config)(**settings))


_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "gpt_neox": _make("GPTNeoXModel", "GPTNeoXConfig", **_PLAIN),
    "gpt_neox_sequential": _make("GPTNeoXModel", "GPTNeoXConfig", **_PLAIN, use_parallel_residual=False),
    "llama": _make("LlamaModel", "LlamaConfig", **_LLAMA),
    "mistral": _make("MistralModel", "MistralConfig", **_LLAMA, sliding_window=None),
    "qwen2": _make("Qwen2Model", "Qwen2Config", **_LLAMA),
    "qwen3": _make("Qwen3Model", "Qwen3Config", **_LLAMA),
    "smollm3": _make("SmolLM3Model", "SmolLM3Config", **_LLAMA),
    "ministral": _make("MinistralModel", "MinistralConfig", **_LLAMA),
    "gemma": _make("GemmaModel", "GemmaConfig", **_LLAMA),
    "phi3": _make("Phi3Model", "Phi3Config", **_LLAMA),
    "olmo": _make("OlmoModel", "OlmoConfig", **_LLAMA),
    "starcoder2": _make("Starcoder2Model", "Starcoder2Config", **_LLAMA),
    "arcee": _make("ArceeModel", "ArceeConfig", **_LLAMA),
    "cwm": _make("CwmModel", "CwmConfig", **_LLAMA),
    "ernie4_5": _make("Ernie4_5Model", "Ernie4_5Config", **_LLAMA),
    "glm": _make("GlmModel", "GlmConfig", **_LLAMA),
    "helium": _make("HeliumModel", "HeliumConfig", **_LLAMA),
    "seed_oss": _make("SeedOssModel", "SeedOssConfig", **_LLAMA),
    "hunyuan_v1_dense": _make("HunYuanDenseV1Model", "HunYuanDenseV1Config", **_LLAMA),
    "eurobert": _make("EuroBertModel", "EuroBertConfig", **_LLAMA),
    "gemma2": _make("Gemma2Model", "Gemma2Config", **_LLAMA),
    "gemma3": _make("Gemma3TextModel", "Gemma3TextConfig", **_LLAMA),
    "gpt2": _make("GPT2Model", "GPT2Config", **_IDS, n_embd=32, n_layer=3, n_head=4, n_positions=128),
    "mamba": _make("MambaModel", "MambaConfig", **_MAMBA),
    "falcon_mamba": _make("FalconMambaModel", "FalconMambaConfig", **_MAMBA),
    "mamba2": _make("Mamba2Model", "Mamba2Config", **_MAMBA, num_heads=8, head_dim=8, n_groups=1, chunk_size=16),
    "bert": _make("BertModel", "BertConfig", **_PLAIN),
    "roberta": _make("RobertaModel", "RobertaConfig", **_PLAIN),
    "xlm_roberta": _make("XLMRobertaModel", "XLMRobertaConfig", **_PLAIN),
    "camembert": _make("CamembertModel", "CamembertConfig", **_PLAIN),
    "mpnet": _make("MPNetModel", "MPNetConfig", **_PLAIN),
    "modernbert": _make("ModernBertModel", "ModernBertConfig", **_PLAIN, cls_token_id=CLS, sep_token_id=SEP),
    # Without a family file of their own: found by `generic`.
    "opt": _make("OPTModel", "OPTConfig", **_IDS, hidden_size=32, ffn_dim=48, num_hidden_layers=3,
                 num_attention_heads=4, max_position_embeddings=128, word_embed_proj_dim=32),
    "phi": _make("PhiModel", "PhiConfig", **_PLAIN),
    "falcon": _make("FalconModel", "FalconConfig", **_IDS, hidden_size=32, num_hidden_layers=3, num_attention_heads=4),
    "electra": _make("ElectraModel", "ElectraConfig", **_PLAIN, embedding_size=16),
    "distilbert": _make("DistilBertModel", "DistilBertConfig", **_IDS, dim=32, hidden_dim=48, n_layers=3, n_heads=4),
}  # fmt: skip

GENERIC_FAMILIES = ("opt", "phi", "falcon", "electra", "distilbert")
TINY_FAMILIES = tuple(name for name in _BUILDERS if name not in GENERIC_FAMILIES)
"""Every architecture that a family file covers; the names `build_tiny` and `tiny_model` take
(beside the generic ones)."""

_ENCODERS = {
    "bert",
    "roberta",
    "xlm_roberta",
    "camembert",
    "mpnet",
    "modernbert",
    "eurobert",
    "electra",
    "distilbert",
}


def build_tiny(family: str, seed: int = 0) -> nn.Module:
    """A tiny base model with random weights everywhere, norms and biases too (an identity norm
    would hide errors)."""
    module = _built(family, seed)
    # The empty tables of hooks, eleven in each module, are most of what would be copied.
    tables = (
        table
        for part in module.modules()
        for table in vars(part).values()
        if type(table) is OrderedDict and not table
    )
    return copy.deepcopy(module, {id(table): OrderedDict() for table in tables})


@functools.cache
def _built(family: str, seed: int) -> nn.Module:
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        module = _BUILDERS[family]()
        for name, parameter in module.named_parameters():
            # Mamba's own time constants must stay in their range.
            if name.endswith(("A_log", "dt_bias", "dt_proj.bias", ".D")):
                continue
            noise = torch.randn_like(parameter)
            parameter.data = 1 + 0.3 * noise if _is_scale(module, name) else 0.25 * noise
        return module.eval()
    finally:
        torch.random.set_rng_state(state)


def _is_scale(module: nn.Module, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    return leaf == "weight" and "norm" in type(module.get_submodule(path)).__name__.lower()


def tiny_tokenizer(encoder: bool = False) -> hf.PreTrainedTokenizerFast:
    """One token per byte; adds [CLS] … [SEP] for encoders and a beginning-of-text token for the
    others."""
    special = ["<pad>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    template = "[CLS] $A [SEP]" if encoder else "<s> $A"
    used = [(token, vocabulary[token]) for token in template.split() if token != "$A"]
    core.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip


def tiny_model(family: str = "llama", seed: int = 0) -> LoadedModel:
    """A tiny model ready to be read, as `load` would give it."""
    return wrap(
        build_tiny(family, seed), tiny_tokenizer(family in _ENCODERS), name=f"tiny-{family}"
    )


def write_pooling(folder: Path, width: int, pooling: str = "mean_tokens") -> None:
    """Make a model's folder a sentence encoder of sentence-transformers."""
    from layerscope.exporting.pipeline import write_pipeline
    from layerscope.store import atomic

    settings = {"word_embedding_dimension": width, f"pooling_mode_{pooling}": True}
    atomic.write_json(folder / "1_Pooling" / "config.json", settings)
    atomic.write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64})
    own = "sentence_transformers.models"
    write_pipeline(
        folder,
        [
            (f"{own}.Transformer", ""),
            (f"{own}.Pooling", "1_Pooling"),
            (f"{own}.Normalize", "2_Normalize"),
        ],
    )
