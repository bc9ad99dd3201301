"""What a model's files declare, compared with each other before anything is built.

A configuration of a few bytes can ask for more memory than any machine has. Its sizes must be sizes
of the weights that lie beside it, and the tokens of its tokenizer must be rows of their embedding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from layerscope.core.untrusted import parse_json, read_json
from layerscope.errors import ModelError

_MOST_HEADER = 100 * 2**20  # bytes: that of safetensors itself
_MOST_TOKENIZER = 128 * 2**20
_LAYERS = (
    "num_hidden_layers",
    "num_blocks",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "depth",
)
_SIZES = (
    "hidden_size", "n_embd", "d_model", "dim", "hidden_dim", "intermediate_size", "ffn_dim", "n_inner", "d_ff", "d_inner",
    "embedding_size", "embed_dim", "num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads", "head_dim",
    "num_experts", "num_local_experts", "state_size", "patch_size", "image_size",
)  # fmt: skip
_VOCABULARIES = (
    "vocab_size",
    "type_vocab_size",
)  # some image models declare one that they have no weights for
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_LISTED = (
    *_LAYERS,
    "num_labels",
    "num_classes",
)  # transformers makes lists of so many, also for parts that are not read
_MOST_LISTED = 100_000
_SLACK = 4  # sizes that are the product of two in the weights: heads and their width, gates that lie together
_MOST_POSITIONS = 2**24


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """The shapes in a safetensors file, from its header, whose places must lie in the file."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(_MOST_HEADER, max(0, size - 8)):
            raise ModelError(
                f"{file} is not a whole safetensors file: its header is cut or damaged. Fetch it again."
            )
        header = parse_json(stream.read(length), f"the header of {file}", ModelError)
    shapes: dict[str, list[int]] = {}
    try:
        for name, entry in header.items():
            if name != "__metadata__":
                shapes[name] = [int(n) for n in entry["shape"]]
                if (
                    not 0
                    <= entry["data_offsets"][0]
                    <= entry["data_offsets"][1]
                    <= size - 8 - length
                ):
                    raise ModelError(
                        f"{file} is cut or damaged: {name} lies beyond its end. Fetch it again."
                    )
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"{file} is not a whole safetensors file: its header is damaged ({error}). Fetch it again."
        ) from error
    return shapes


def check_sizes(
    folder: Path, config: dict[str, Any], weights: Iterable[Path], inner: str = "text_config"
) -> None:
    """Refuse a configuration whose sizes are not those of the weights, and token ids that have no
    row in them.

    Of the configurations inside it, only the one called `inner` is that of the model that will be
    read.
    """
    for name, value in config.items():
        # a share of what is dropped in training; some architectures hand it on even where nothing
        # is dropped
        if "drop" in str(name) and isinstance(value, float) and not 0 <= value <= 1:
            raise ModelError(
                f"{folder / 'config.json'} declares {name} {value}; it is a share, from 0 to 1. The file is damaged."
            )
    shapes = [shape for file in weights for shape in tensor_shapes(file).values()]
    if not shapes:
        raise ModelError(f"the weights in {folder} hold no tensor.")
    largest = max((n for shape in shapes for n in shape), default=1)
    anywhere = dict.fromkeys(_LISTED, _MOST_LISTED)
    read = {
        **anywhere,
        **dict.fromkeys(_LAYERS, len(shapes)),
        **dict.fromkeys(_SIZES, max(1024, _SLACK * largest)),
        **dict.fromkeys(_VOCABULARIES, max(2**20, _SLACK * largest)),
        **dict.fromkeys(_POSITIONS, max(_MOST_POSITIONS, 64 * largest)),
    }
    for part in _parts(config):
        limits = read if part is config or part is config.get(inner) else anywhere
        for name, value in _numbers(part):
            if value > limits.get(name, value):
                raise ModelError(
                    f"{folder / 'config.json'} declares {name} {value:,}, which cannot be: its weights have {len(shapes)} "
                    f"tensors, whose largest size is {largest:,}. The files do not belong together, or one is damaged."
                )
    _check_tokens(folder / "tokenizer.json", max(1024, _SLACK * largest))


def _parts(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A configuration and those inside it."""
    waiting = [config]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [value for value in part.values() if isinstance(value, dict)]


def _numbers(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every whole number of a configuration with its name."""
    for name, value in config.items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield str(name), value
        elif isinstance(value, float) and value.is_integer():
            yield str(name), int(value)


def _check_tokens(file: Path, most: int) -> None:
    """A tokenizer makes room for its highest id, so that one entry can ask for gigabytes."""
    if not file.is_file():
        return
    content = read_json(file, error=ModelError, most_bytes=_MOST_TOKENIZER)
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = content.get("added_tokens")
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += (
        [token.get("id") for token in added if isinstance(token, dict)]
        if isinstance(added, list)
        else []
    )
    highest = max((value for value in ids if isinstance(value, int)), default=0)
    if highest > most:
        raise ModelError(
            f"{file} gives a token the id {highest:,}, far beyond the weights, whose largest size is {most // _SLACK:,}. "
            "The files do not belong together, or one is damaged."
        )
