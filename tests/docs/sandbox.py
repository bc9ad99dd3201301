"""A place to run the documentation's code in: tiny models under the catalogue's names, small files
under the names of the pages.

Nothing here is real: what is checked is that the code runs, not what it prints.
"""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from layerscope.catalogue import Entry, Origin
from layerscope.core.templates import TEMPLATES
from layerscope.data.corpus import CORPORA
from layerscope.evaluation import job
from layerscope.evaluation.scoring import scoring_pool
from layerscope.evaluation.tasks import TASKS, TaskEntry
from layerscope.models.source import MODELS
from tests.tiny import build_tiny, tiny_tokenizer, write_pooling

TOPICS = {
    "battery": [
        "the battery is empty by noon",
        "it charges slowly",
        "the battery lasts two days",
        "charging takes all night",
    ],
    "screen": [
        "the screen is bright",
        "colors look washed out",
        "the display has a scratch",
        "a sharp picture",
    ],
    "price": [
        "too expensive for what it does",
        "a fair price",
        "it was cheap",
        "not worth the money",
    ],
}
TEXTS = [
    f"{text}, said customer {k}" for k in range(8) for rows in TOPICS.values() for text in rows
]
LABELS = [topic for _ in range(8) for topic, rows in TOPICS.items() for _ in rows]
_FAMILIES = {"smollm2-135m": "llama", "gemma3-270m": "gemma3", "minilm-l6": "bert"}


@dataclass(frozen=True)
class StandIn(Origin):
    """A folder or file of the sandbox in place of a download."""

    place: Path
    version = "stand-in"

    def path(self, entry: Entry) -> Path:
        return self.place

    def is_cached(self, entry: Entry) -> bool:
        return True

    def fetch(self, entry: Entry) -> Path:
        return self.place


@cache
def word_tokenizer(encoder: bool) -> Any:
    """Whole words as tokens, as real tokenizers have them: with a token per byte a template alone
    would fill a short text."""
    tiny = tiny_tokenizer(encoder)
    core = Tokenizer.from_str(tiny.backend_tokenizer.to_str())
    special = ["<pad>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    patterns = [template.pattern for template in TEMPLATES.all().values()]
    core.train_from_iterator([*TEXTS, *patterns], trainer)
    names = {
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    return PreTrainedTokenizerFast(tokenizer_object=core, mask_token="[MASK]", **names)


def _classified(_folder: Path) -> dict[str, list[dict[str, Any]]]:
    names = sorted(TOPICS)
    told = [
        (f"{text}, {more}", label)
        for more in ("today", "again", "twice")
        for text, label in zip(TEXTS, LABELS, strict=True)
    ]
    rows = [{"text": text, "label": names.index(label)} for text, label in told]
    return {"train": rows[:240], "test": rows[240:]}


def _pairs(_folder: Path) -> dict[str, list[dict[str, Any]]]:
    pairs = pairwise(TEXTS)
    return {
        "test": [
            {"sentence1": a, "sentence2": b, "score": float(len(set(a) & set(b)))} for a, b in pairs
        ]
    }


def deep(family: str, blocks: int) -> Any:
    """A tiny model with so many blocks."""
    tiny = build_tiny(family)
    settings = {key: value for key, value in tiny.config.to_dict().items() if key != "layer_types"}
    torch.manual_seed(0)
    return type(tiny)(type(tiny.config)(**{**settings, "num_hidden_layers": blocks})).eval()


def deepest(page: str) -> int:
    """The highest layer that a page names in a command, or 3."""
    named = re.findall(r"--layers? (\d+)|layers=\[?([\d, ]+)", page)
    return max(
        [3, *(int(layer) for pair in named for part in pair for layer in part.split(",") if layer)]
    )


def stand_ins(monkeypatch: pytest.MonkeyPatch, folder: Path, blocks: int = 3) -> None:
    """Tiny models, a small corpus and tasks under the catalogue's names, for the length
    of a test."""
    for name, family in _FAMILIES.items():
        place = folder / name
        words = word_tokenizer(encoder=family == "bert")
        module = deep(family, blocks)
        module.resize_token_embeddings(len(words))
        if family != "bert":  # rotary positions know no end
            module.config.max_position_embeddings = 2048
        module.save_pretrained(place)
        words.save_pretrained(place)
        if family == "bert":
            with torch.no_grad():  # norms as training leaves them
                for name_of, values in module.named_parameters():
                    if "LayerNorm" in name_of:
                        values.add_(0.1 * torch.randn_like(values))
            module.save_pretrained(place)
            write_pooling(place, module.config.hidden_size)
        monkeypatch.setitem(MODELS._things, name, replace(MODELS.get(name), origin=StandIn(place)))
    (folder / "lee.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    for name in ("lee", "movie-reviews"):
        monkeypatch.setitem(
            CORPORA._things,
            name,
            replace(CORPORA.get("lee"), name=name, origin=StandIn(folder / "lee.txt")),
        )
    for name in ("TrecQuestions", "SentimentSnippets", "SmsSpam"):
        monkeypatch.setitem(
            TASKS._things, name, replace(TASKS.get(name), origin=StandIn(folder), read=_classified)
        )
    pairs = TaskEntry(
        name="STSBenchmark",
        summary="pairs",
        license="",
        origin=StandIn(folder),
        task_type="STS",
        read=_pairs,
    )
    for name in ("STSBenchmark", "LeeSimilarity"):
        monkeypatch.setitem(TASKS._things, name, replace(pairs, name=name))
    # scoring processes would not know these tasks
    monkeypatch.setattr(job, "scoring_pool", lambda workers: scoring_pool(0))


def fill_folder(folder: Path) -> None:
    """The files that the pages speak of."""
    with (folder / "reviews.csv").open("w", encoding="utf-8", newline="") as lines:
        rows = csv.writer(lines)
        rows.writerow(["text", "label"])
        rows.writerows(zip(TEXTS, LABELS, strict=True))
    shutil.copy(folder / "reviews.csv", folder / "examples.csv")
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    shutil.copy(folder / "reviews.csv", folder / "articles.csv")
    shutil.copytree(Path(__file__).parents[2] / "examples", folder / "examples")
    build_tiny("llama").save_pretrained(folder / "my-model")
    tiny_tokenizer().save_pretrained(folder / "my-model")


def given() -> dict[str, Any]:
    """Return the names that the pages use: a reader's texts, a model in memory, a training loop."""
    import transformers

    module = transformers.LlamaForCausalLM(build_tiny("llama").config)
    tokenizer = tiny_tokenizer()
    batch = dict(tokenizer(TEXTS[:4], return_tensors="pt", padding=True))
    batch["labels"] = batch["input_ids"].clone()
    return {
        "__name__": "docs",
        "texts": TEXTS,
        "held_out_texts": TEXTS[:8],
        "model": module,
        "tokenizer": tokenizer,
        "batches": [batch] * 3,
        "optimizer": torch.optim.SGD(module.parameters(), lr=1e-3),
    }
