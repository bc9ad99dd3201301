"""Small tasks of all five types, a plain way to read a model that shares no code with layerscope,
and counting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta

from layerscope.models import LoadedModel
from tests.evaluation.tasks.conftest import TOPICS, overlap, topic_texts
from tests.evaluation.tasks.support import write_rows

PATTERNS = {
    "plain": "{text}",
    "echo": "Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
    "one-word": 'This sentence: "{text}" means in one word: "',
}
TASKS = ["Pairs", "Topics", "Sets", "TwitterSemEval2015", "Ranking"]
"""One task of each type; the fourth is mteb's own (its main score is the best of several average
precisions)."""

_FINAL_NORMS = {"llama": "norm", "gpt_neox": "final_layer_norm", "mamba": "norm_f", "bert": None}


def write_tasks(folder: Path, pairs: int = 24, texts: int = 24) -> Path:
    """A data folder with a small task of each type. The tasks share texts."""
    drawn = topic_texts(texts)
    linked = [
        (drawn[i % texts][0], drawn[(i * 5 + 3 + i // texts) % texts][0]) for i in range(pairs)
    ]
    write_rows(
        folder / "Pairs" / "test.jsonl",
        [{"sentence1": a, "sentence2": b, "score": overlap(a, b)} for a, b in linked],
    )
    labels = [{"text": text, "label": list(TOPICS).index(topic)} for text, topic in drawn]
    write_rows(folder / "Topics" / "train.jsonl", labels)
    write_rows(folder / "Topics" / "test.jsonl", labels[: texts // 2])
    sets = [
        {"sentences": [t for t, _ in part], "labels": [x for _, x in part]}
        for part in (drawn[: texts // 2], drawn[texts // 2 :])
    ]
    write_rows(folder / "Sets" / "test.jsonl", sets)
    binary = [
        {"sentence1": a, "sentence2": b, "labels": int(overlap(a, b) > 1.5)} for a, b in linked
    ]
    write_rows(folder / "TwitterSemEval2015" / "test.jsonl", binary)
    ranking = [
        {
            "query": f"{words} {n}",
            "positive": [t for t, x in part if x == topic],
            "negative": [t for t, x in part if x != topic],
        }
        for n, part in enumerate((drawn[:9], drawn[9:18]))
        for topic, words in TOPICS.items()
    ]
    write_rows(folder / "Ranking" / "test.jsonl", ranking)
    return folder


def read_by_hand(model: LoadedModel, ids: list[int], family: str) -> tuple[np.ndarray, np.ndarray]:
    """The states (layers, tokens, D) of one unpadded text, raw and with the final norm, without
    layerscope."""
    name = _FINAL_NORMS[family]
    norm = None if name is None else getattr(model.module, name)
    tokens = torch.tensor([ids])
    with torch.no_grad():
        if norm is None:
            raw = torch.cat(model.module(input_ids=tokens, output_hidden_states=True).hidden_states)
            return raw.numpy(), raw.numpy()
        caught: list[torch.Tensor] = []
        handle = norm.register_forward_pre_hook(lambda _m, args: caught.append(args[0].clone()))
        found = model.module(input_ids=tokens, output_hidden_states=True).hidden_states
        handle.remove()
        embedded = model.module.get_input_embeddings()(tokens)
        # transformers' Mamba leaves the embeddings out; all return the last state with the norm
        between = [state for state in found[:-1] if not torch.equal(state, embedded)][
            : model.n_blocks - 1
        ]
        raw = torch.cat([embedded, *between, caught[0]])
        return raw.numpy(), norm(raw).numpy()


def pool_by_hand(
    raw: np.ndarray, states: np.ndarray, span: tuple[int, int], pooling: str, drop: bool
) -> np.ndarray:
    """One vector from one layer's states (tokens, D); the token with the largest raw norm left out
    on request."""
    kept = list(range(*span))
    if pooling == "cls":
        return states[0].astype(np.float64)
    if pooling == "last":
        return states[kept[-1]].astype(np.float64)
    weights = (
        {token: place + 1.0 for place, token in enumerate(kept)}
        if pooling == "wmean"
        else dict.fromkeys(kept, 1.0)
    )
    sink = int(np.argmax(np.linalg.norm(raw, axis=-1)))
    if drop and sink in kept and len(kept) > 1:
        kept.remove(sink)
    rows = states[kept].astype(np.float64)
    if pooling == "max":
        return rows.max(0)
    return np.average(rows, axis=0, weights=[weights[token] for token in kept])


def fill_by_hand(
    tokenizer: Any, template: str, text: str, encoder: bool
) -> tuple[list[int], tuple[int, int]]:
    """Token ids and what is read of them, for the tiny tokenizer: a byte is a token."""
    pattern = PATTERNS[template]
    ids = tokenizer(pattern.replace("{text}", text))["input_ids"]
    if template != "echo":
        return ids, (0, len(ids))
    end = len(ids) - (1 if encoder else 0)
    return ids, (end - len(text.encode()), end)


class PlainEncoder(AbsEncoder):
    """One layer under one readout as anyone would write it for mteb: a forward pass per text, and
    numpy."""

    def __init__(self, model: LoadedModel, family: str, layer: int, readout: str) -> None:
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "tests/plain", "revision": "1"}
        )
        self.model, self.family, self.layer = model, family, layer
        self.template, self.pooling, self.norm, self.sink, self.centering = readout.split("/")
        self.mean: np.ndarray | float = 0.0
        self.read: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def at(self, layer: int, readout: str) -> PlainEncoder:
        """The same model read elsewhere. What it has read once it need not read again."""
        other = PlainEncoder(self.model, self.family, layer, readout)
        other.read = self.read
        return other

    def vector(self, text: str) -> np.ndarray:
        ids, span = fill_by_hand(self.model.tokenizer, self.template, text, self.family == "bert")
        if tuple(ids) not in self.read:
            self.read[tuple(ids)] = read_by_hand(self.model, ids, self.family)
        raw, normed = self.read[tuple(ids)]
        states = normed if self.norm == "applied" else raw
        return pool_by_hand(
            raw[self.layer], states[self.layer], span, self.pooling, self.sink == "drop"
        )

    def center_on(self, texts: set[str]) -> None:
        if self.centering == "corpus":
            self.mean = np.mean([self.vector(text) for text in sorted(texts)], axis=0)

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        return np.stack(
            [self.vector(text) - self.mean for batch in inputs for text in batch["text"]]
        ).astype(np.float32)


class Listener(AbsEncoder):
    """Notes the texts that a task encodes."""

    def __init__(self) -> None:
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "tests/listener", "revision": "1"}
        )
        self.texts: set[str] = set()

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        texts = [text for batch in inputs for text in batch["text"]]
        self.texts.update(texts)
        return np.array([[1.0, len(text), sum(text.encode())] for text in texts])


def mteb_score(task: Any, encoder: AbsEncoder) -> float:
    """mteb's main score of one loaded task, as mteb's own tools give it."""
    import mteb

    result = mteb.evaluate(
        encoder, task, cache=None, co2_tracker=False, show_progress_bar=False
    ).task_results[0]
    return float(next(iter(result.scores.values()))[0]["main_score"])


class Seen:
    """What reaches a model: the token ids of every text, unpadded."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self.rows)


def watch(
    monkeypatch: pytest.MonkeyPatch, hold: Callable[[Seen], None] = lambda seen: None
) -> Seen:
    """Record every text that reaches any model's forward pass."""
    seen = Seen()
    forward = LoadedModel.forward

    def counted(
        self: LoadedModel,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        *rest: Any,
        **named: Any,
    ) -> Any:
        for row, mask in zip(input_ids.tolist(), attention_mask.tolist(), strict=True):
            # where all texts begin alike that part is read once: the mask has it too, the rows have
            # what follows
            seen.rows.append(
                tuple(token for token, real in zip(row, mask[-len(row) :], strict=True) if real)
            )
        hold(seen)
        return forward(self, input_ids, attention_mask, *rest, **named)

    monkeypatch.setattr(LoadedModel, "forward", counted)
    return seen
