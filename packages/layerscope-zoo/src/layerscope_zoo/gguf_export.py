"""GGUF: the cut model as one file for llama.cpp, with its pooling inside.

llama.cpp pools by mean, the first or the last token, and always applies the final norm before. So
`applied` is what it computes. `raw` is not: without a norm there is no file. With a norm whose
weights are all 1 every token keeps its direction and loses its length. That is exact, up to the
vector's length, where one token is read (`last`, `cls`), and refused for a mean. A template is not
in the file: the caller puts the text into it. Layout: `gguf/model.gguf`.
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
    """How a model class is called by llama.cpp. `interleaved`: pairs of a rotation are neighbors;
    `plus_one`: norms add 1."""

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

# llama.cpp knows the rules by which a tokenizer splits a text before merging by their names
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {_LLAMA3: "llama-bpe", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2"}


def why_not(readout: Readout) -> str | None:
    """The reason why llama.cpp cannot compute a readout, or None.

    >>> why_not(Readout("plain", "last", "raw")) is None, why_not(Readout("plain", "mean", "raw")) is None
    (True, False)
    """
    known = {
        name: pooling.llama_cpp for name, pooling in POOLINGS.all().items() if pooling.llama_cpp
    }
    if readout.pooling not in known:
        return f"llama.cpp pools by {', '.join(known)}, not by {readout.pooling}"
    if readout.centering != "none":
        return "llama.cpp subtracts no mean and knows no head: export with centering `none`, and apply it yourself"
    if readout.final_norm == "raw" and POOLINGS.get(readout.pooling).position is None:
        return "llama.cpp always applies the final norm: there is no mean over tokens without it. Use `applied`, or pool by `last`"
    return None


def write_gguf(draft: Draft) -> dict[str, Any]:
    """Write the file, read it back, and compare its vectors with torch's where llama-cpp-python is
    installed."""
    import gguf

    known = ARCHITECTURES[type(draft.model.module).__name__]
    file = draft.folder / FILE
    file.parent.mkdir()
    writer = gguf.GGUFWriter(str(file), known.name)
    _write_settings(writer, draft)
    vocabulary = _write_tokenizer(writer, draft)
    tensors = dict(_tensors(draft, known))
    precision = (
        "F32" if any(np.abs(array).max(initial=0) > _HALF for array in tensors.values()) else "F16"
    )
    writer.add_file_type(
        gguf.LlamaFileType.MOSTLY_F16 if precision == "F16" else gguf.LlamaFileType.ALL_F32
    )
    for name, array in tensors.items():
        half = precision == "F16" and array.ndim == 2
        writer.add_tensor(
            name, np.ascontiguousarray(array.astype(np.float16 if half else np.float32))
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _read_back(file, tensors, draft)
    facts: dict[str, Any] = {
        "file": FILE,
        "bytes": file.stat().st_size,
        "architecture": known.name,
        "precision": precision,
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
            f"this model attends to {window} tokens at a time, and llama.cpp to all of them. Add max_length={window}."
        )
    rope = config.rope_parameters
    whole = rope.get("full_attention", rope)
    writer.add_name(f"{draft.model.name} at layer {draft.layer}")
    writer.add_description(
        f"layer {draft.layer}, {draft.readout.name}, template {draft.template.pattern}; layerscope {VERSION}"
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
        if (
            rope.get("sliding_attention", {}).get("rope_theta", 10000.0) != 10000.0
            or config.query_pre_attn_scalar != head
        ):
            raise ExportError(
                "this Gemma has rotations or a scale of its own, which llama.cpp does not read from a file."
            )
        expected = [
            "full_attention" if (i + 1) % 6 == 0 else "sliding_attention"
            for i in range(draft.layer)
        ]
        if list(config.layer_types)[: draft.layer] != expected:
            raise ExportError(
                "the windows of this Gemma do not follow the pattern that llama.cpp has for it."
            )
        writer.add_sliding_window(int(window))


def _tensors(draft: Draft, known: _Architecture) -> Iterator[tuple[str, np.ndarray]]:
    """The weights that are needed, by the names and in the order of llama.cpp."""
    module: Any = draft.model.module
    config = module.config

    def plain(tensor: Any) -> np.ndarray:
        array: np.ndarray = tensor.detach().float().cpu().numpy()
        return array

    yield "token_embd.weight", plain(module.get_input_embeddings().weight)
    for number, block in enumerate(list(draft.model.anatomy.blocks)[: draft.layer]):
        for name, parameter in block.named_parameters():
            place, _, leaf = name.rpartition(".")
            if place not in known.names:
                raise ExportError(
                    f"{type(module).__name__} has weights {name!r}, which llama.cpp has no place for."
                )
            array = plain(parameter)
            if known.interleaved and place in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = (
                    config.num_attention_heads
                    if place.endswith("q_proj")
                    else config.num_key_value_heads
                )
                array = interleaved(array, int(heads))
            if known.plus_one and place.endswith("norm"):
                array = array + 1
            yield f"blk.{number}.{known.names[place]}.{leaf}", array
    norm: Any = draft.model.anatomy.final_norm
    weights = plain(norm.weight) + (1 if known.plus_one else 0)
    yield (
        "output_norm.weight",
        weights if draft.readout.final_norm == "applied" else np.ones_like(weights),
    )
    factors = _rope_factors(module)
    if factors is not None:
        yield "rope_freqs.weight", factors


def rows_of(draft: Draft) -> int:
    """How many tokens the model has embeddings for."""
    module: Any = draft.model.module
    return int(module.get_input_embeddings().weight.shape[0])


def interleaved(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection in the order in which llama.cpp rotates them: pairs are neighbors, not
    half a head apart.

    >>> interleaved(np.arange(4.0)[:, None], 1).ravel().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    split = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return split.swapaxes(1, 2).reshape(weights.shape)


def _rope_factors(module: Any) -> np.ndarray | None:
    """What the frequencies of rotation are divided by where they are scaled (Llama 3.1), or
    None."""
    rotary = getattr(module, "rotary_emb", None)
    given = getattr(rotary, "inv_freq", None)
    if given is None:  # Gemma has two sets, neither of them scaled
        kinds = {
            part.get("rope_type", "default")
            for part in module.config.rope_parameters.values()
            if isinstance(part, dict)
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
    count = len(given)
    plain = 1 / float(module.config.rope_parameters["rope_theta"]) ** (np.arange(count) / count)
    factors = plain / given.detach().double().cpu().numpy()
    return None if np.allclose(factors, 1, rtol=1e-4) else factors.astype(np.float32)


# --- the tokenizer ---


def _write_tokenizer(writer: Any, draft: Draft) -> int:
    """Tokens, merges or scores, and what is put around a text; the number of tokens."""
    import gguf

    tokenizer = draft.model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise ExportError(
            f"{draft.model.name} has no fast tokenizer, which a GGUF file is made from."
        )
    told = json.loads(tokenizer.backend_tokenizer.to_str())
    model = told["model"]
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
    added = {one["id"]: one["special"] for one in told["added_tokens"]}
    kinds = gguf.TokenType
    types = []
    for token in range(rows):
        name = names.get(token)
        if name is None:
            types.append(kinds.UNUSED)
        elif token in added:
            types.append(kinds.CONTROL if added[token] else kinds.USER_DEFINED)
        else:
            types.append(
                kinds.BYTE if pieces and len(name) == 6 and name.startswith("<0x") else kinds.NORMAL
            )
    if pieces:
        _write_pieces(writer, told, rows)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_split_rule(told))
        writer.add_token_merges(
            [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        )
    writer.add_token_list([names.get(token, f"[PAD{token}]") for token in range(rows)])
    writer.add_token_types(types)
    before, after = special_tokens(tokenizer.backend_tokenizer)
    for what, ids, add in (
        ("bos", before, writer.add_add_bos_token),
        ("eos", after, writer.add_add_eos_token),
    ):
        if len(ids) > 1:
            raise ExportError(
                f"the tokenizer puts {len(ids)} tokens at one end of a text; llama.cpp puts one at most."
            )
        own = getattr(tokenizer, f"{what}_token_id")
        number = ids[0] if ids else own
        if number is not None:
            getattr(writer, f"add_{what}_token_id")(int(number))
        add(bool(ids))
    return len(names)


def _write_pieces(writer: Any, told: Mapping[str, Any], rows: int) -> None:
    """A SentencePiece vocabulary: pieces that come first are merged first."""
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_scores([-float(token) for token in range(rows)])
    steps = json.dumps([told.get("normalizer"), told.get("pre_tokenizer")])
    prefixed = (
        '"Prepend"' in steps
        or '"prepend_scheme": "first"' in steps
        or '"prepend_scheme": "always"' in steps
    )
    writer.add_add_space_prefix(prefixed)


def _split_rule(told: Mapping[str, Any]) -> str:
    """The name that llama.cpp has for the rule by which this tokenizer splits texts before it
    merges."""
    step = told.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers", [step])
    kinds = [one.get("type") for one in steps]
    if told.get("normalizer") is None and not any(one.get("add_prefix_space") for one in steps):
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
        "this tokenizer splits texts by a rule that has no known name in llama.cpp: no GGUF file can be written."
    )


# --- checks ---


def _read_back(file: Path, tensors: Mapping[str, np.ndarray], draft: Draft) -> None:
    import gguf

    reader = gguf.GGUFReader(str(file))
    read = {tensor.name: tensor for tensor in reader.tensors}
    if set(read) != set(tensors):
        raise ExportError("the GGUF file does not hold the tensors that were written.")
    for name, array in tensors.items():
        again = np.asarray(read[name].data).reshape(array.shape).astype(np.float32)
        if not np.allclose(
            again, array, rtol=2e-3, atol=1e-6 + 1e-3 * float(np.abs(array).max(initial=0))
        ):
            raise ExportError(f"the tensor {name} of the GGUF file is not what was written.")


def _compare(file: Path, draft: Draft) -> dict[str, Any]:
    """The largest cosine distance to torch, measured with llama-cpp-python; what was not measured
    is None."""
    try:
        import llama_cpp  # type: ignore[import-not-found, unused-ignore]
    except Exception:  # not installed, or its library does not load here
        return {}
    texts = [text for text in draft.texts if len(text) < 1000 and text == text.strip()]
    given = [draft.template.pattern.replace(SLOT, text) for text in texts]
    ids = draft.framed.ids(texts)
    length = max(map(len, ids)) + 8
    model = llama_cpp.Llama(
        str(file), embedding=True, n_ctx=length, n_batch=length, n_ubatch=length, verbose=False
    )
    theirs = [list(model.tokenize(text.encode(), add_bos=True, special=False)) for text in given]
    alike = [i for i, row in enumerate(theirs) if row == ids[i]]
    if 2 * len(alike) < len(texts):
        raise ExportError(
            f"llama.cpp tokenizes {len(texts) - len(alike)} of {len(texts)} texts otherwise than the model does."
        )
    vectors = np.array([model.embed(given[i], normalize=False) for i in alike])
    wanted = pooled_vectors(draft.model, [ids[i] for i in alike], draft.layer, draft.readout)
    distances = cosine_distances(wanted, vectors)
    worst = float(distances.max())
    if not worst <= TOLERANCE:
        raise ExportError(
            f"llama.cpp's vectors are not torch's: cosine distance {worst:.1e}, allowed {TOLERANCE:.0e}."
        )
    return {
        "compared": f"llama-cpp-python {llama_cpp.__version__}",
        "cosine_distance": worst,
        "texts": len(alike),
        "tokenized_otherwise": len(texts) - len(alike),
    }


class GgufFormat(ExportFormat):
    """`gguf/model.gguf`: the cut model for llama.cpp, with its pooling."""

    name: ClassVar[str] = "gguf"
    summary: ClassVar[str] = "one file for llama.cpp (llama and gemma3), its pooling inside"

    def check_choice(self, model: LoadedModel, layer: int, readout: Readout) -> None:
        """llama.cpp must know the architecture, and be able to compute the readout."""
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
                "layer 0 has no block, and llama.cpp opens no model without one. Choose a layer from 1."
            )
        if model.identity["bidirectional"]:
            raise ExportError(
                "llama.cpp reads this architecture from left to right only, and the model was read in both directions."
            )

    def write(self, draft: Draft) -> dict[str, Any]:
        """The file, and what was measured of it."""
        return write_gguf(draft)

    def card(self, facts: Any) -> str:
        """How llama.cpp is told to embed, and how near it is."""
        lines = [
            "## GGUF",
            "",
            f"{_file(facts)} for llama.cpp: `llama-embedding -m {facts['file']}`, or `Llama(path, embedding=True).embed(text)`.",
            f"Pooling ({facts['pooling']}) is in the file.",
        ]
        if facts["template"] != SLOT:
            lines.append(f"The template is not: put every text into `{facts['template']}` first.")
        if facts["final_norm"] == "directions":
            lines.append(
                "This layer is read without the final norm; llama.cpp gives the same direction, but not the length."
            )
        lines.append(_checked(facts))
        return "\n".join(lines)

    def lines(self, facts: Any) -> list[str]:
        """One line."""
        return [f"{_file(facts)} · {_checked(facts)}"]


def _file(facts: Mapping[str, Any]) -> str:
    return f"{facts['file']} ({facts['architecture']}, {facts['precision']}, {describe_size(facts['bytes'])})"


def _checked(facts: Mapping[str, Any]) -> str:
    if facts["compared"] is None:
        return "Read back and compared with the weights; llama-cpp-python is not installed, so its vectors were not compared."
    text = f"{facts['compared']}: cosine distance to torch at most {facts['cosine_distance']:.1e} on {facts['texts']} texts."
    if facts["tokenized_otherwise"]:
        text += f" {facts['tokenized_otherwise']} more texts are tokenized otherwise by llama.cpp."
    return text


FORMAT = GgufFormat()
