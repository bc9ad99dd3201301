"""A model ready to be read: its module, its tokenizer, where its parts are, and what identifies
it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.capture.batches import Batch, make_batch
from layerscope.capture.hooks import Anatomy
from layerscope.data.items import Items
from layerscope.errors import DataError, InvalidValueError, ModelError
from layerscope.models import modules
from layerscope.models.inputs import (
    ItemReader,
    ReadSettings,
    TextReader,
    cut_by_characters,
    tokenizer_explained,
)

FileState = tuple[int, int, int]

_IDS_ALONE = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
_TOKENIZING = threading.Lock()  # texts are read ahead in threads, and a tokenizer serves one


def file_state(path: Path) -> FileState | None:
    """Return a file's size, modification time and inode; None where it is gone."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


@dataclass(frozen=True)
class Tokens:
    """The token ids of several texts, and which texts were cut to fit."""

    ids: list[list[int]]
    truncated: list[bool]


@dataclass
class LoadedModel:
    """One model: the base model without a head, in evaluation mode, with its tokenizer and its
    anatomy."""

    module: nn.Module
    tokenizer: Any
    anatomy: Anatomy
    name: str
    identity: dict[str, Any] = field(default_factory=dict)
    files: dict[Path, FileState | None] = field(default_factory=dict, repr=False, compare=False)
    """The files of its weights as they were when it was loaded. The weights may be mapped: whoever
    writes to a file changes the model."""

    def __post_init__(self) -> None:
        self._accepts = modules.forward_parameters(self.module)
        self._positions_pad = positions_pad(self.module)
        # Truncation settings live inside a tokenizer; a copy leaves the user's as it was.
        self._tokenizer = copy.deepcopy(self.tokenizer)
        if self._tokenizer is not None:
            self._tokenizer.truncation_side = "right"
        self.shares_prefixes: bool | None = None  # None: not tried yet, see `models.prefix`
        self._shortcuts_tried = False

    def check_files(self) -> None:
        """Raise an error if a file of the weights is not the one that was loaded."""
        for path, before in self.files.items():
            if file_state(path) != before:
                raise ModelError(
                    f"{path} was changed while {self.name} was in use, so results would mix two "
                    "models. Run the same command again, or load the model again."
                )

    def warnings(self, final_norm: str = "raw") -> list[str]:
        """Return what a reader of results must know about the model."""
        notes = []
        if self.anatomy.final_norm is None and final_norm != "raw":
            notes.append(
                f"this model has no final norm: final_norm={final_norm} is the same as raw here."
            )
        if quantization := self.identity.get("quantization"):
            notes.append(f"the weights were quantized ({quantization}) in their source.")
        return notes

    @property
    def kind(self) -> str:
        """The kind of items that the model reads: `texts`, …"""
        return "texts"

    def open_items(self, items: Items, settings: ReadSettings | None = None) -> ItemReader:
        """Return the reader that turns items into the model's input."""
        if items.kind != self.kind:
            raise DataError(
                f"{self.name} reads {self.kind}, not {items.kind}: give {self.kind} (data=), or "
                "another model."
            )
        return self._reader(items, settings or ReadSettings())

    def _reader(self, items: Items, settings: ReadSettings) -> ItemReader:
        return TextReader(self, items, settings)

    @property
    def one_at_a_time(self) -> bool:
        """True if items are run alone, because padding would change what the model computes."""
        return False

    @property
    def n_blocks(self) -> int:
        """Number of blocks L; layers run from 0 to L."""
        return self.anatomy.n_blocks

    @property
    def has_class_token(self) -> bool:
        """True if the first token stands for the text: in models that see both ways and have such a
        token."""
        is_bidirectional = bool(self.identity.get("bidirectional"))
        return is_bidirectional and getattr(self.tokenizer, "cls_token_id", None) is not None

    @cached_property
    def width(self) -> int:
        """Number of features D of a token's state."""
        config = getattr(self.module, "config", None)
        width = getattr(config, "hidden_size", None) or getattr(config, "d_model", None)
        return int(width or modules.first(self.try_model()).shape[-1])

    def try_model(self) -> Any:
        """Run the model on a small input."""
        return modules.run(self.module, modules.sample(self.module))

    @property
    def preparation(self) -> Any:
        """The tokenizer, or what else makes the model's input of items."""
        return self.tokenizer

    def own_identity(self) -> dict[str, Any]:
        """Return the submodule of the identity that only models of its kind have."""
        return {}

    @cached_property
    def max_length(self) -> int | None:
        """The most tokens the model takes at once according to its config, or None where it has no
        such limit."""
        config = getattr(self.module, "config", None)
        names = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
        length = next((value for name in names if (value := getattr(config, name, None))), None)
        if not isinstance(length, int) or length <= 0:
            return None
        # Positions that start after the padding id use up that many of the table.
        return length if self._positions_pad is None else length - self._positions_pad - 1

    @property
    def device(self) -> torch.device:
        """The device of the input."""
        return modules.input_device(self.module)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's numbers."""
        return modules.weights_dtype(self.module)

    @property
    def pad_id(self) -> int:
        """A token id to pad with. Padding is masked, so any valid id will do where the model names
        none."""
        if self._positions_pad is not None:
            return self._positions_pad
        config = getattr(self.module, "config", None)
        names = ((self.tokenizer, "pad_token_id"), (config, "pad_token_id"))
        for owner, name in (*names, (self.tokenizer, "eos_token_id")):
            token = getattr(owner, name, None)
            if token is not None:
                return int(token[0] if isinstance(token, list) else token)
        return 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, cache: Any = None) -> Any:
        """Run the base model without gradients on texts padded on the right.

        `cache` holds the keys and values of tokens before these, the same for all.
        """
        # the host would wait for a GPU here
        if attention_mask.device.type == "cpu" and not bool(attention_mask[:, 0].all()):
            raise ModelError(
                "texts are padded on the left: pad them on the right, which is exact for every "
                "model."
            )
        if "attention_mask" not in self._accepts and not bool(attention_mask.all()):
            raise ModelError(
                f"{type(self.module).__name__} takes no attention mask, so padding would be read "
                "as text. Give it texts of one length at a time (batch size 1)."
            )
        if cache is not None:
            before = attention_mask.new_ones((len(attention_mask), int(cache.get_seq_length())))
            attention_mask = torch.cat([before, attention_mask], dim=1)
        return modules.run(self.module, input_ids, attention_mask, cache)

    @property
    def item_bytes(self) -> int:
        """The memory of one item's input; next to nothing for a text."""
        return 0

    def lengths(self, rows: Sequence[Sequence[int] | np.ndarray]) -> list[int]:
        """Return the number of tokens of each row."""
        return [len(row) for row in rows]

    def make_batch(self, rows: Sequence[Sequence[int] | np.ndarray]) -> Batch:
        """Return rows of token ids as one batch on the model's device, padded on the right."""
        return make_batch(rows, self.pad_id, self.device)

    def find_shortcuts(self) -> None:
        """Try once which steps of a model on a GPU kernels can do together. No hook may watch these
        passes."""
        if not self._shortcuts_tried and self.device.type == "cuda":
            self._shortcuts_tried = True
            modules.find_shortcuts(self.module)

    def run(self, batch: Batch) -> Any:
        """Run the base model on a padded batch."""
        return self.forward(batch.input_ids, batch.whole_mask)

    def tokenize(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return token ids with the special tokens that the tokenizer adds, cut from the right to
        `max_length` tokens.

        Without `max_length` texts are cut to the model's own limit.
        """
        if isinstance(texts, str):
            raise DataError(
                "tokenize takes a list of texts, and was given one string. Wrap it in a list."
            )
        if not texts:
            return Tokens([], [])
        longest = max_length if max_length is not None else self.max_length
        self._check_length(longest)
        beginnings, shortened = cut_by_characters(texts, longest)
        encodings = self._encode(beginnings, longest)
        for i in shortened:
            if not encodings[i].overflowing:
                encodings[i] = self._encode([texts[i]], longest)[0]
        ids = [encoding.ids for encoding in encodings]
        return Tokens(ids, [bool(encoding.overflowing) for encoding in encodings])

    def _encode(self, texts: Sequence[str], longest: int | None = None) -> list[Any]:
        """Return the encodings of the tokenizers library, cut from the right to `longest`
        tokens."""
        if not getattr(self._tokenizer, "is_fast", False):
            raise ModelError(
                f"{self.name} has no fast tokenizer (one of the tokenizers library, with a "
                "tokenizer.json). Pass one to wrap(module, tokenizer)."
            )
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        with _TOKENIZING, tokenizer_explained(self.name):
            encodings = self._tokenizer(list(texts), **cut, **_IDS_ALONE).encodings
        return list(encodings)

    def _check_length(self, longest: int | None) -> None:
        """Raise an error unless the length has room for the special tokens of every text."""
        if longest is None:
            return
        if longest < 1:
            raise InvalidValueError(f"max_length must be at least 1, not {longest}.")
        count = getattr(self._tokenizer, "num_special_tokens_to_add", None)
        special = 0 if count is None else int(count())
        if longest < special:
            raise InvalidValueError(
                f"max_length {longest} is too short for {self.name}: its tokenizer adds {special} "
                f"special tokens to every text. Give at least {special + 1}."
            )

    def tokenize_with_offsets(
        self, texts: Sequence[str]
    ) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
        """Return token ids, uncut, and for each token the characters it came from; (0, 0) for
        special tokens."""
        encodings = self._encode(texts)
        ids = [encoding.ids for encoding in encodings]
        return ids, [[(int(a), int(b)) for a, b in encoding.offsets] for encoding in encodings]


def positions_pad(module: nn.Module) -> int | None:
    """Return the padding id that RoBERTa and its kin count positions from, or None.

    They make positions from the token ids, skipping that id and starting after it: they must be
    padded with it.
    """
    for name, submodule in module.named_modules():
        is_table = name.endswith("position_embeddings") and isinstance(submodule, nn.Embedding)
        if is_table and submodule.padding_idx is not None:
            return int(submodule.padding_idx)
    return None
