"""What a probe reads is what the model computes: patches, their mean, the class token, at every
layer up to the last."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.capture import expand_sites
from layerscope.data import Corpus
from layerscope.probing.frozen import ModelItems, ModelReader
from layerscope.probing.states import StateCache, plan_storage, statistics
from layerscope.progress import Silent
from tests.tiny import tiny_model

TEXTS = ["a", "some words", "no", "many more words than that", "one two three"]


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_text_states_do_not_depend_on_padding(family: str) -> None:
    model = tiny_model(family)
    source = ModelItems(model, Corpus.of(TEXTS), 16)
    sites = expand_sites(None, model.anatomy)
    with ModelReader(model, source, sites, "applied", ["tokens", "mean", "summary"]) as reader:
        together = reader.read_all(np.arange(5))
        assert source.has_class_token is (family == "bert")
        for i in range(5):
            alone = reader.read_all([i])
            count = source.lengths[i]
            states, mask = together["tokens"]
            assert mask is not None
            assert int(mask[i].sum()) == count
            torch.testing.assert_close(
                states[:, i, :count], alone["tokens"][0][:, 0], rtol=1e-4, atol=1e-5
            )
            assert (states[:, i, count:] == 0).all()
            torch.testing.assert_close(
                together["mean"][0][:, i, 0], alone["tokens"][0][:, 0].mean(1), rtol=1e-4, atol=1e-5
            )
            summary = alone["tokens"][0][:, 0, 0] if family == "bert" else alone["mean"][0][:, 0, 0]
            torch.testing.assert_close(
                together["summary"][0][:, i, 0], summary, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("how", ["float32", "none"])
@pytest.mark.parametrize("disk", [True, False])
def test_kept_states_are_the_ones_that_were_read(how: str, disk: bool, tmp_path: object) -> None:
    model = tiny_model("llama")
    source = ModelItems(model, Corpus.of(TEXTS), 16)
    sites = expand_sites(None, model.anatomy)
    folder = tmp_path / "kept" if disk else None  # type: ignore[operator]
    plan = plan_storage(["tokens", "mean"], len(sites), source.lengths, model.width, how, 2**30)
    items, layers = np.array([4, 1, 2]), [0, 3]
    with ModelReader(model, source, sites, "raw", ["tokens", "mean"]) as reader:
        expected, mask = reader.read_all(items)["tokens"]
        for attempt in range(2 if disk else 1):
            keeper = StateCache(reader, plan, folder)
            if attempt:  # what is on disk is not computed again
                reader.read_all = lambda items: (
                    pytest.fail("the model was run") if how != "none" else None
                )  # type: ignore[assignment,method-assign,misc]
                if how == "none":
                    break
            states = keeper.run(Silent())["tokens"]
            for piece, found, alive in states.read(layers, items):
                count = expected.shape[2]
                assert alive is not None
                assert mask is not None
                assert torch.equal(alive[:, :count], mask)
                wanted = expected[layers][piece][:, alive[:, :count]]
                torch.testing.assert_close(
                    found[:, :, :count][:, alive[:, :count]], wanted, rtol=1e-5, atol=1e-5
                )


def test_what_is_kept_follows_the_store_size() -> None:
    lengths = [10] * 100
    tokens, pooled = 3 * 100 * 10 * 8, 3 * 100 * 8

    def how(store_size: int, keep: str = "auto") -> dict[str, str]:
        return plan_storage(["tokens", "mean"], 3, lengths, 8, keep, store_size).how

    assert how(4 * (tokens + pooled)) == {"mean": "float32", "tokens": "float32"}
    assert how(2 * tokens)["tokens"] == "none"
    assert how(0, "float32")["tokens"] == "float32"


def test_statistics_against_numpy() -> None:
    model = tiny_model("llama")
    source = ModelItems(model, Corpus.of(TEXTS), 16)
    sites = expand_sites(None, model.anatomy)
    with ModelReader(model, source, sites, "raw", ["tokens"]) as reader:
        keeper = StateCache(
            reader,
            plan_storage(["tokens"], len(sites), source.lengths, model.width, "auto", 2**30),
            None,
        )
        states = keeper.run(Silent())["tokens"]
        items = np.array([0, 3, 4])
        found = statistics(states, [1, 2], items, 2)
        rows = (
            torch.cat([reader.read_all([i])["tokens"][0][:, 0] for i in items], dim=1)
            .double()
            .numpy()
        )
    for i, layer in enumerate([1, 2]):
        np.testing.assert_allclose(found.mean[i].numpy(), rows[layer].mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            found.scale[i].numpy(), np.sqrt(rows[layer].var(0) + 1e-6), rtol=1e-4
        )
