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
from layerscope.models import LoadedModel
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors import encode as encoding
from layerscope.vectors.encode import encode, find_missing, read_readout
from layerscope.vectors.encoder import EncodeRequest
from tests.evaluation.support import fill_by_hand, pool_by_hand, read_by_hand, watch
from tests.tiny import tiny_model

TEXTS = ["a dog", "a cat sat", "naïve 🙂", "a dog", "", "something longer than that", "x"]


def make_request(
    model: LoadedModel, template: str, readings: list[str], max_length: int = 128
) -> EncodeRequest:
    sites = tuple(expand_sites(None, model.anatomy))
    return EncodeRequest(get_template(template), sites, tuple(readings), max_length)


def encode_texts(
    store: VectorStore,
    model: LoadedModel,
    template: str,
    readings: list[str],
    max_length: int = 128,
) -> VectorSpace:
    request = make_request(model, template, readings, max_length)
    missing = find_missing(model, store, [request], TEXTS)
    encode(model, missing)
    return missing[0].space


def missing_texts(
    store: VectorStore, model: LoadedModel, readings: list[str], texts: list[str] = TEXTS
) -> list[str]:
    return find_missing(model, store, [make_request(model, "plain", readings)], texts)[0].texts


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_every_readout_from_the_store(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = tiny_model(family), watch(monkeypatch)
    store = VectorStore(tmp_path)
    distinct = list(dict.fromkeys(TEXTS))
    largest = 0.0
    for template in ("plain", "echo", "one-word"):
        readouts = all_readouts([template], has_cls=family == "bert", has_norm=family != "bert")
        before = len(seen)
        request = make_request(model, template, kinds_of(readouts))
        space = encode_texts(store, model, template, kinds_of(readouts))
        assert len(seen) - before == len(distinct)
        assert find_missing(model, store, [request], TEXTS)[0].texts == []
        for text in distinct:
            ids, span = fill_by_hand(model.tokenizer, template, text, family == "bert")
            span = (
                span if span[0] < span[1] else (0, len(ids))
            )  # an empty second copy: everything is read
            raw, normed = read_by_hand(model, ids, family)
            for readout in readouts:
                for layer, site in enumerate(request.sites):
                    found = read_readout(space, [text_key(text)], readout, site.name)[0]
                    states = (normed if readout.final_norm == "applied" else raw)[layer]
                    wanted = pool_by_hand(
                        raw[layer], states, span, readout.pooling, readout.sink == "drop"
                    )
                    largest = max(
                        largest, float(np.abs(found - wanted).max() / np.abs(wanted).max())
                    )
    assert largest < 2e-5


def test_a_text_without_a_token_has_a_vector(tmp_path: Path) -> None:
    model = tiny_model()
    model._tokenizer.backend_tokenizer.post_processor = None
    assert model.tokenize([""], 8).ids == [[]]
    space = encode_texts(VectorStore(tmp_path), model, "plain", ["mean/raw", "sink/raw"])
    vector = read_readout(space, [text_key("")], Readout.parse("plain/mean/raw/drop"), "block.0")
    raw, _ = read_by_hand(model, [model.pad_id], "llama")
    np.testing.assert_allclose(
        vector[0], raw[1, 0], rtol=1e-5, atol=1e-5
    )  # values up to 8 in float32


def test_only_what_is_missing_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny_model(), watch(monkeypatch)
    store = VectorStore(tmp_path)
    encode_texts(store, model, "plain", ["mean/raw", "last/raw"])
    assert len(seen) == 6
    encode_texts(store, model, "plain", ["last/raw"])  # there already
    assert len(seen) == 6
    encode_texts(store, model, "plain", ["mean/raw", "sink/raw"])  # the sink is new
    assert len(seen) == 12
    again = missing_texts(store, model, ["mean/raw"], ["a dog", "new", "new", "x"])
    assert again == ["new"]
    fresh = encode_texts(
        VectorStore(tmp_path), tiny_model(), "plain", ["mean/raw", "last/raw", "sink/raw"]
    )  # another process, say
    assert len(seen) == 12
    keys = [text_key(text) for text in set(TEXTS)]
    assert not fresh.missing(keys, ["mean/raw", "sink/raw"], ["block.0"]).any()


def test_different_circumstances_share_nothing(tmp_path: Path) -> None:
    store = VectorStore(tmp_path)
    kinds = ["mean/raw"]
    spaces = [
        encode_texts(store, tiny_model(), "plain", kinds),
        encode_texts(store, tiny_model(), "echo", kinds),
        encode_texts(store, tiny_model(), "plain", kinds, max_length=9),
        encode_texts(store, tiny_model(seed=1), "plain", kinds),
    ]
    renamed = tiny_model()
    renamed.identity["dtype"] = "bfloat16"
    spaces.append(encode_texts(store, renamed, "plain", kinds))
    assert len({space.key for space in spaces}) == len(spaces)
    key = [text_key("something longer than that")]
    rows = [space.read(key, "mean/raw", "block.2")[0] for space in spaces]
    for other in (1, 2, 3):
        assert np.abs(rows[0] - rows[other]).max() > 0.1
    assert spaces[2].read_numbers(key, "truncated")[0]
    assert not spaces[0].read_numbers(key, "truncated")[0]
    assert spaces[0].read_numbers(key, "tokens")[0] == 27
    again = encode_texts(VectorStore(tmp_path), tiny_model(), "plain", kinds)
    assert again.key == spaces[0].key


def test_a_gpu_encodes_few_texts_in_one_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    request = make_request(model, "plain", ["mean/raw"], 64)
    sizes: list[int] = []
    monkeypatch.setattr(VectorSpace, "add", lambda self, shard: sizes.append(len(shard.keys)))
    texts = [f"text number {i}" for i in range(300)]
    encode(model, find_missing(model, VectorStore(tmp_path), [request], texts))
    assert sizes == [12] * 25
    monkeypatch.setattr(LoadedModel, "device", torch.device("cuda"))
    chunk_size = encoding._chunk_size
    assert [chunk_size(request, count, model) for count in (300, 10_000)] == [4096, 4096]


def test_an_interruption_loses_a_twenty_fifth_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, store = tiny_model(), VectorStore(tmp_path)
    texts = [f"text number {i}" for i in range(300)]
    request = make_request(model, "plain", ["mean/raw"], 64)

    def stop(seen: object) -> None:
        if len(seen) > 200:  # type: ignore[arg-type]
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        seen = watch(patched, stop)
        with pytest.raises(KeyboardInterrupt):
            encode(model, find_missing(model, store, [request], texts))
    left = find_missing(model, store, [request], texts)
    assert len(seen) + len(left[0].texts) - 300 <= 300 // 25
    encode(model, left)
    assert find_missing(model, store, [request], texts)[0].texts == []
