"""Encoding: each distinct text once, only what is missing, and nothing shared between different
circumstances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from layerscope.capture import expand_sites
from layerscope.core.readout import Readout, all_readouts, kinds_of
from layerscope.core.templates import get_template
from layerscope.evaluation.encode import EncodePass, TextEncoder, open_space, readout_vectors
from layerscope.models import LoadedModel
from layerscope.store.embeddings import EmbeddingStore, text_key
from tests.evaluation.support import fill_by_hand, pool_by_hand, read_by_hand, watch
from tests.tiny import tiny_model

TEXTS = ["a dog", "a cat sat", "naïve 🙂", "a dog", "", "something longer than that", "x"]


def encode(
    store: EmbeddingStore,
    model: LoadedModel,
    template: str,
    kinds: list[str],
    max_length: int = 128,
    dtype: str = "float32",
) -> EncodePass:
    space = open_space(store, model, get_template(template), max_length, dtype)
    one = EncodePass(
        TextEncoder(
            model, get_template(template), expand_sites(None, model.anatomy), kinds, max_length
        ),
        space,
    )
    one.run(one.missing(TEXTS))
    return one


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_every_readout_from_the_store(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = tiny_model(family), watch(monkeypatch)
    store = EmbeddingStore(tmp_path)
    distinct = list(dict.fromkeys(TEXTS))
    largest = 0.0
    for template in ("plain", "echo", "one-word"):
        readouts = all_readouts([template], has_cls=family == "bert", has_norm=family != "bert")
        before = len(seen)
        one = encode(store, model, template, kinds_of(readouts))
        assert len(seen) - before == len(distinct)
        assert one.missing(TEXTS) == []
        for text in distinct:
            ids, span = fill_by_hand(model.tokenizer, template, text, family == "bert")
            span = (
                span if span[0] < span[1] else (0, len(ids))
            )  # an empty second copy: everything is read
            raw, normed = read_by_hand(model, ids, family)
            for readout in readouts:
                for layer, site in enumerate(one.sites):
                    found = readout_vectors(one.space, [text_key(text)], readout, site.name)[0]
                    states = (normed if readout.final_norm == "applied" else raw)[layer]
                    wanted = pool_by_hand(
                        raw[layer], states, span, readout.pooling, readout.sink == "drop"
                    )
                    largest = max(
                        largest, float(np.abs(found - wanted).max() / np.abs(wanted).max())
                    )
    assert largest < 2e-5


def test_order_and_repeats_do_not_matter(tmp_path: Path) -> None:
    one = encode(EmbeddingStore(tmp_path), tiny_model(), "plain", ["mean/raw"])
    keys = [text_key(text) for text in TEXTS]
    rows = one.space.read(keys, "mean/raw", "block.1")
    np.testing.assert_array_equal(rows[0], rows[3])
    np.testing.assert_array_equal(rows[::-1], one.space.read(keys[::-1], "mean/raw", "block.1"))
    assert len(np.unique(rows, axis=0)) == 6


def test_a_text_without_a_token_has_a_vector(tmp_path: Path) -> None:
    model = tiny_model()
    model._tokenizer.backend_tokenizer.post_processor = None
    assert model.tokenize([""], 8).ids == [[]]
    one = encode(EmbeddingStore(tmp_path), model, "plain", ["mean/raw", "sink/raw"])
    vector = readout_vectors(
        one.space, [text_key("")], Readout.parse("plain/mean/raw/drop"), "block.0"
    )
    raw, _ = read_by_hand(model, [model.pad_id], "llama")
    np.testing.assert_allclose(
        vector[0], raw[1, 0], rtol=1e-5, atol=1e-5
    )  # values up to 8 in float32


def test_only_what_is_missing_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny_model(), watch(monkeypatch)
    store = EmbeddingStore(tmp_path)
    encode(store, model, "plain", ["mean/raw", "last/raw"])
    assert len(seen) == 6
    encode(store, model, "plain", ["last/raw"])  # there already
    assert len(seen) == 6
    one = encode(store, model, "plain", ["mean/raw", "sink/raw"])  # the sink is new
    assert len(seen) == 12
    assert one.missing(["a dog", "new", "new", "x"]) == ["new"]
    fresh = encode(
        EmbeddingStore(tmp_path), tiny_model(), "plain", ["mean/raw", "last/raw", "sink/raw"]
    )  # another process, say
    assert len(seen) == 12
    assert fresh.space.texts == 6


def test_different_circumstances_share_nothing(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    kinds = ["mean/raw"]
    passes = [
        encode(store, tiny_model(), "plain", kinds),
        encode(store, tiny_model(), "echo", kinds),
        encode(store, tiny_model(), "plain", kinds, max_length=9),
        encode(store, tiny_model(), "plain", kinds, dtype="float16"),
        encode(store, tiny_model(seed=1), "plain", kinds),
    ]
    renamed = tiny_model()
    renamed.identity["dtype"] = "bfloat16"
    passes.append(encode(store, renamed, "plain", kinds))
    assert len({one.space.key for one in passes}) == len(passes)
    key = [text_key("something longer than that")]
    rows = [one.space.read(key, "mean/raw", "block.2")[0] for one in passes]
    assert (
        0 < np.abs(rows[0] - rows[3]).max() < 1e-3 * np.abs(rows[0]).max()
    )  # float16 keeps three digits
    for other in (1, 2, 4):
        assert np.abs(rows[0] - rows[other]).max() > 0.1
    assert passes[2].space.read_numbers(key, "truncated")[0]
    assert not passes[0].space.read_numbers(key, "truncated")[0]
    assert passes[0].space.read_numbers(key, "tokens")[0] == 27
    again = encode(EmbeddingStore(tmp_path), tiny_model(), "plain", kinds)
    assert again.space.key == passes[0].space.key


def test_a_gpu_encodes_few_texts_in_one_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    monkeypatch.setattr("layerscope.forward.token_budget", lambda *_: 4096)
    for device, chunks in (("cpu", [12] * 25), ("cuda", [300])):
        monkeypatch.setattr(LoadedModel, "device", torch.device(device))
        space = open_space(EmbeddingStore(tmp_path), model, get_template("plain"), 64)
        one = EncodePass(
            TextEncoder(
                model, get_template("plain"), expand_sites(None, model.anatomy), ["mean/raw"], 64
            ),
            space,
        )
        assert [span.stop - span.start for span in one.spans(300)] == chunks
    assert [span.stop - span.start for span in one.spans(10_000)] == [4096, 4096, 1808]


def test_an_interruption_loses_a_twenty_fifth_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    texts = [f"text number {i}" for i in range(300)]
    space = open_space(EmbeddingStore(tmp_path), model, get_template("plain"), 64)
    one = EncodePass(
        TextEncoder(
            model, get_template("plain"), expand_sites(None, model.anatomy), ["mean/raw"], 64
        ),
        space,
    )

    def stop(seen: object) -> None:
        if len(seen) > 200:  # type: ignore[arg-type]
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        seen = watch(patched, stop)
        with pytest.raises(KeyboardInterrupt):
            one.run(one.missing(texts))
    left = one.missing(texts)
    assert len(seen) + len(left) - 300 <= 300 // 25
    one.run(left)
    assert one.missing(texts) == []
