"""Export the cut model as one GGUF file for llama.cpp, `gguf/model.gguf`, with its pooling.

llama.cpp pools by mean, the first or the last token, and always applies the final norm before. This
equals the final norm `applied`. For `raw` the file gets a norm whose weights are all 1, which keeps
the direction of every token but not its length. That is exact, up to the vector's length, for a
single token (`last`, `cls`); a mean is refused. The file does not contain the template, so the
caller must put texts into it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from layerscope.core.options import describe_size
from layerscope.core.readout import Readout
from layerscope.core.templates import POOLINGS, SLOT
from layerscope.errors import ExportError
from layerscope.exporting.draft import special_tokens
from layerscope.exporting.formats import Draft, ExportFormat
from layerscope.exporting.verifying import cosine_distances, pooled_vectors
from layerscope.models import LoadedModel
from layerscope.version import VERSION

FILE = "gguf/model.gguf"
TOLERANCE = 1e-3  # cosine distance; weights are in half precision
_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class _Architecture:
    """llama.cpp's names for a model class and its weights.

    `interleaved`: the pairs of a rotation are neighbors. `plus_one`: norms add 1.
    """

    name: str
    names: Mapping[str, str]
    interleaved: bool = False
    plus_one: bool = False


_COMMON = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
_LLAMA = _Architecture(
    "llama", {**_COMMON, "post_attention_layernorm": "ffn_norm"}, interleaved=True
)
_GEMMA3 = _Architecture(
    "gemma3",
    {
        **_COMMON,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    plus_one=True,
)
ARCHITECTURES = {"LlamaModel": _LLAMA, "MistralModel": _LLAMA, "Gemma3TextModel": _GEMMA3}

# llama.cpp has names for the rules by which tokenizers split a text before they merge
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {_LLAMA3: "llama-bpe", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2"}


def why_not(readout: Readout) -> str | None:
    """Return the reason why llama.cpp cannot compute a readout, or None.

    >>> [why_not(Readout("plain", pooling, "raw")) is None for pooling in ("last", "mean")]
    [True, False]
    """
    names = [name for name, pooling in POOLINGS.all().items() if pooling.llama_cpp]
    if readout.pooling not in names:
        return f"llama.cpp pools by {', '.join(names)}, not by {readout.pooling}"
    if readout.centering != "none":
        return "llama.cpp supports neither centering nor heads. Use centering `none`"
    if readout.final_norm == "raw" and POOLINGS.get(readout.pooling).position is None:
        return "llama.cpp always applies the final norm first. Use `applied`, or pool by `last`"
    return None


def write_gguf(draft: Draft) -> dict[str, Any]:
    """Write the file, read it back, and compare its vectors with torch's if llama-cpp-python is
    installed."""
    import gguf

    architecture = ARCHITECTURES[type(draft.model.module).__name__]
    file = draft.folder / FILE
    file.parent.mkdir()
    writer = gguf.GGUFWriter(str(file), architecture.name)
    _write_settings(writer, draft)
    vocabulary = _write_tokenizer(writer, draft)
    tensors = dict(_tensors(draft, architecture))
    is_half = all(np.abs(array).max(initial=0) <= _HALF for array in tensors.values())
    kinds = gguf.LlamaFileType
    writer.add_file_type(kinds.MOSTLY_F16 if is_half else kinds.ALL_F32)
    for name, array in tensors.items():
        dtype = np.float16 if is_half and array.ndim == 2 else np.float32
        writer.add_tensor(name, np.ascontiguousarray(array.astype(dtype)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _read_back(file, tensors, draft)
    facts: dict[str, Any] = {
        "file": FILE,
        "bytes": file.stat().st_size,
        "architecture": architecture.name,
        "precision": "F16" if is_half else "F32",
        "tokens": vocabulary,
        "pooling": draft.readout.pooling,
        "final_norm": "applied" if draft.readout.final_norm == "applied" else "directions",
        "template": draft.template.pattern,
        "compared": None,
    }
    return {**facts, **_compare(file, draft)}


def _write_settings(writer: Any, draft: Draft) -> None:
    import gguf

    module: Any = draft.model.module
    config = module.config
    head = int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    window: Any = getattr(config, "sliding_window", None)
    gemma = type(module).__name__ == "Gemma3TextModel"
    if window and not gemma and window < draft.framed.max_length:
        raise ExportError(
            f"this model attends to {window} tokens at a time, and llama.cpp to all of them. Add "
            f"max_length={window}."
        )
    rope = config.rope_parameters
    whole = rope.get("full_attention", rope)
    writer.add_name(f"{draft.model.name} at layer {draft.layer}")
    writer.add_description(
        f"layer {draft.layer}, {draft.readout.name}, template {draft.template.pattern}; "
        f"layerscope {VERSION}"
    )
    writer.add_block_count(draft.layer)
    writer.add_context_length(int(config.max_position_embeddings))
    writer.add_embedding_length(int(config.hidden_size))
    writer.add_feed_forward_length(int(config.intermediate_size))
    writer.add_head_count(int(config.num_attention_heads))
    writer.add_head_count_kv(int(config.num_key_value_heads))
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(float(config.rms_norm_eps))
    writer.add_rope_freq_base(float(whole["rope_theta"]))
    writer.add_vocab_size(rows_of(draft))
    writer.add_pooling_type(gguf.PoolingType[str(POOLINGS.get(draft.readout.pooling).llama_cpp)])
    writer.add_causal_attention(True)
    if gemma:
        theta = rope.get("sliding_attention", {}).get("rope_theta", 10000.0)
        windows = list(config.layer_types)[: draft.layer]
        is_usual = theta == 10000.0 and config.query_pre_attn_scalar == head
        pattern = [*["sliding_attention"] * 5, "full_attention"]
        if not is_usual or any(kind != pattern[i % 6] for i, kind in enumerate(windows)):
            raise ExportError(
                "llama.cpp does not support this Gemma's rotations, scale or attention windows. "
                "Export another format."
            )
        writer.add_sliding_window(int(window))


def _tensors(draft: Draft, architecture: _Architecture) -> Iterator[tuple[str, np.ndarray]]:
    """Yield llama.cpp's names of the weights, in its order, with their values."""
    module: Any = draft.model.module
    config = module.config

    def plain(tensor: Any) -> np.ndarray:
        array: np.ndarray = tensor.detach().float().cpu().numpy()
        return array

    yield "token_embd.weight", plain(module.get_input_embeddings().weight)
    for number, block in enumerate(list(draft.model.anatomy.blocks)[: draft.layer]):
        for name, parameter in block.named_parameters():
            place, _, leaf = name.rpartition(".")
            if place not in architecture.names:
                raise ExportError(
                    f"{type(module).__name__} has weights {name!r}, which llama.cpp does not know."
                )
            array = plain(parameter)
            if architecture.interleaved and place in ("self_attn.q_proj", "self_attn.k_proj"):
                is_query = place.endswith("q_proj")
                heads = config.num_attention_heads if is_query else config.num_key_value_heads
                array = interleaved(array, int(heads))
            if architecture.plus_one and place.endswith("norm"):
                array = array + 1
            yield f"blk.{number}.{architecture.names[place]}.{leaf}", array
    norm: Any = draft.model.anatomy.final_norm
    weights = plain(norm.weight) + (1 if architecture.plus_one else 0)
    if draft.readout.final_norm != "applied":
        weights = np.ones_like(weights)
    yield "output_norm.weight", weights
    factors = _rope_factors(module)
    if factors is not None:
        yield "rope_freqs.weight", factors


def rows_of(draft: Draft) -> int:
    """Return the number of tokens for which the model has embeddings."""
    module: Any = draft.model.module
    return int(module.get_input_embeddings().weight.shape[0])


def interleaved(weights: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of a projection in llama.cpp's order, in which the pairs of a rotation are
    neighbors, not half a head apart.

    >>> interleaved(np.arange(4.0)[:, None], 1).ravel().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    split = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return split.swapaxes(1, 2).reshape(weights.shape)


def _rope_factors(module: Any) -> np.ndarray | None:
    """Return the factors that divide the frequencies of rotation if these are scaled (Llama 3.1),
    else None."""
    rotary = getattr(module, "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    if frequencies is None:  # Gemma has two sets, neither of them scaled
        kinds = {
            parameters.get("rope_type", "default")
            for parameters in module.config.rope_parameters.values()
            if isinstance(parameters, dict)
        }
        if kinds - {"default"}:
            raise ExportError(
                f"rotations of type {', '.join(sorted(kinds))} cannot be written for llama.cpp."
            )
        return None
    if float(getattr(rotary, "attention_scaling", 1.0)) != 1.0:
        raise ExportError(
            "rotations that also scale attention (YaRN) cannot be written for llama.cpp."
        )
    count = len(frequencies)
    plain = 1 / float(module.config.rope_parameters["rope_theta"]) ** (np.arange(count) / count)
    factors = plain / frequencies.detach().double().cpu().numpy()
    return None if np.allclose(factors, 1, rtol=1e-4) else factors.astype(np.float32)


# --- the tokenizer ---


def _write_tokenizer(writer: Any, draft: Draft) -> int:
    """Write tokens, merges or scores and special tokens; return the number of tokens."""
    import gguf

    tokenizer = draft.model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise ExportError(f"{draft.model.name} has no fast tokenizer, which the GGUF export needs.")
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    model = settings["model"]
    if model.get("type") != "BPE":
        raise ExportError(
            f"no GGUF file can hold a tokenizer of type {model.get('type')}. Valid: BPE."
        )
    pieces = bool(model.get("byte_fallback"))
    rows = rows_of(draft)
    names = {token: name for name, token in tokenizer.get_vocab().items()}
    if max(names) >= rows:
        raise ExportError(
            f"the tokenizer has tokens up to {max(names)}, the model embeddings for {rows}."
        )
    added = {token["id"]: token["special"] for token in settings["added_tokens"]}
    kinds = gguf.TokenType
    types = []
    for token in range(rows):
        name = names.get(token)
        if name is None:
            types.append(kinds.UNUSED)
        elif token in added:
            types.append(kinds.CONTROL if added[token] else kinds.USER_DEFINED)
        else:
            is_byte = pieces and len(name) == 6 and name.startswith("<0x")
            types.append(kinds.BYTE if is_byte else kinds.NORMAL)
    if pieces:
        _write_pieces(writer, settings, rows)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_split_rule(settings))
        writer.add_token_merges(
            [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        )
    writer.add_token_list([names.get(token, f"[PAD{token}]") for token in range(rows)])
    writer.add_token_types(types)
    before, after = special_tokens(tokenizer.backend_tokenizer)
    for kind, ids, add in (
        ("bos", before, writer.add_add_bos_token),
        ("eos", after, writer.add_add_eos_token),
    ):
        if len(ids) > 1:
            raise ExportError(
                f"the tokenizer adds {len(ids)} tokens at one end of a text; llama.cpp adds at "
                "most one."
            )
        default = getattr(tokenizer, f"{kind}_token_id")
        number = ids[0] if ids else default
        if number is not None:
            getattr(writer, f"add_{kind}_token_id")(int(number))
        add(bool(ids))
    return len(names)


def _write_pieces(writer: Any, settings: Mapping[str, Any], rows: int) -> None:
    """Write a SentencePiece vocabulary, whose first pieces are merged first."""
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_scores([-float(token) for token in range(rows)])
    steps = json.dumps([settings.get("normalizer"), settings.get("pre_tokenizer")])
    marks = ('"Prepend"', '"prepend_scheme": "first"', '"prepend_scheme": "always"')
    writer.add_add_space_prefix(any(mark in steps for mark in marks))


def _split_rule(settings: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the rule by which a tokenizer splits texts before it merges."""
    step = settings.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    kinds = [step_facts.get("type") for step_facts in steps]
    if settings.get("normalizer") is None and not any(
        step_facts.get("add_prefix_space") for step_facts in steps
    ):
        if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
            return "gpt-2"
        if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
            return "smollm"
        pattern = (
            steps[0].get("pattern", {}).get("Regex") if kinds == ["Split", "ByteLevel"] else None
        )
        if pattern in _SPLITS:
            return _SPLITS[pattern]
    raise ExportError(
        "this tokenizer splits texts by a rule that llama.cpp does not support. Export another "
        "format."
    )


# --- checks ---


def _read_back(file: Path, tensors: Mapping[str, np.ndarray], draft: Draft) -> None:
    import gguf

    reader = gguf.GGUFReader(str(file))
    read = {tensor.name: tensor for tensor in reader.tensors}
    if set(read) != set(tensors):
        raise ExportError("the GGUF file does not hold the tensors that were written.")
    for name, array in tensors.items():
        values = np.asarray(read[name].data).reshape(array.shape).astype(np.float32)
        tolerance = 1e-6 + 1e-3 * float(np.abs(array).max(initial=0))
        if not np.allclose(values, array, rtol=2e-3, atol=tolerance):
            raise ExportError(f"the tensor {name} of the GGUF file is not what was written.")


def _compare(file: Path, draft: Draft) -> dict[str, Any]:
    """Compare the file's vectors with torch's by llama-cpp-python; return no facts if it is not
    installed."""
    try:
        import llama_cpp  # type: ignore[import-not-found, unused-ignore]
    except Exception:  # not installed, or its library does not load here
        return {}
    texts = [text for text in draft.texts if len(text) < 1000 and text == text.strip()]
    prompts = [draft.template.pattern.replace(SLOT, text) for text in texts]
    ids = draft.framed.ids(texts)
    length = max(map(len, ids)) + 8
    model = llama_cpp.Llama(
        str(file), embedding=True, n_ctx=length, n_batch=length, n_ubatch=length, verbose=False
    )
    token_ids = [
        list(model.tokenize(text.encode(), add_bos=True, special=False)) for text in prompts
    ]
    alike = [i for i, row in enumerate(token_ids) if row == ids[i]]
    if 2 * len(alike) < len(texts):
        raise ExportError(
            f"llama.cpp tokenizes {len(texts) - len(alike)} of {len(texts)} texts differently."
        )
    vectors = np.array([model.embed(prompts[i], normalize=False) for i in alike])
    expected = pooled_vectors(draft.model, [ids[i] for i in alike], draft.layer, draft.readout)
    distances = cosine_distances(expected, vectors)
    worst = float(distances.max())
    if not worst <= TOLERANCE:
        raise ExportError(
            f"llama.cpp's vectors differ from torch's: cosine distance {worst:.1e}, allowed "
            f"{TOLERANCE:.0e}."
        )
    return {
        "compared": f"llama-cpp-python {llama_cpp.__version__}",
        "cosine_distance": worst,
        "texts": len(alike),
        "tokenized_otherwise": len(texts) - len(alike),
    }


class GgufFormat(ExportFormat):
    """Writes `gguf/model.gguf`: the cut model for llama.cpp, with its pooling."""

    name: ClassVar[str] = "gguf"
    summary: ClassVar[str] = "one file for llama.cpp (llama and gemma3), its pooling inside"

    def check_choice(self, model: LoadedModel, layer: int, readout: Readout) -> None:
        """Raise an error unless llama.cpp supports the architecture and the readout."""
        kind = type(model.module).__name__
        if kind not in ARCHITECTURES:
            raise ExportError(
                f"no GGUF file can be written of a {kind}. Valid: {', '.join(ARCHITECTURES)}."
            )
        reason = why_not(readout)
        if reason is not None:
            raise ExportError(f"readout {readout.name!r} cannot be a GGUF file: {reason}.")
        if layer == 0:
            raise ExportError(
                "layer 0 has no block, and llama.cpp needs one. Choose a layer from 1."
            )
        if model.identity["bidirectional"]:
            raise ExportError(
                "llama.cpp has only causal attention for this architecture; the model's is "
                "bidirectional."
            )

    def write(self, draft: Draft) -> dict[str, Any]:
        """Write the file and return its facts."""
        return write_gguf(draft)

    def card(self, facts: Any) -> str:
        """Return the model card's section: the command and the difference from torch."""
        lines = [
            "## GGUF",
            "",
            f"{_file(facts)} for llama.cpp: `llama-embedding -m {facts['file']}`, or "
            "`Llama(path, embedding=True).embed(text)`.",
            f"Pooling ({facts['pooling']}) is in the file.",
        ]
        if facts["template"] != SLOT:
            lines.append(f"The template is not: put every text into `{facts['template']}` first.")
        if facts["final_norm"] == "directions":
            lines.append(
                "This layer is read without the final norm; llama.cpp gives the same direction, "
                "but not the length."
            )
        lines.append(_checked(facts))
        return "\n".join(lines)

    def lines(self, facts: Any) -> list[str]:
        """Return one line for the terminal."""
        return [f"{_file(facts)} · {_checked(facts)}"]


def _file(facts: Mapping[str, Any]) -> str:
    size = describe_size(facts["bytes"])
    return f"{facts['file']} ({facts['architecture']}, {facts['precision']}, {size})"


def _checked(facts: Mapping[str, Any]) -> str:
    if facts["compared"] is None:
        return (
            "Read back and compared with the weights; llama-cpp-python is not installed, so its "
            "vectors were not compared."
        )
    text = (
        f"{facts['compared']}: cosine distance to torch at most {facts['cosine_distance']:.1e} on "
        f"{facts['texts']} texts."
    )
    if facts["tokenized_otherwise"]:
        text += f" llama.cpp tokenizes {facts['tokenized_otherwise']} more texts differently."
    return text


FORMAT = GgufFormat()
