"""What a probe reads is what the model computes: patches, their mean, the class token, at every
layer up to the last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from layerscope.capture import expand_sites
from layerscope.data import Corpus
from layerscope.probing.frozen import ModelItems, ModelReader
from layerscope.probing.states import open_states, plan_storage, statistics
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


@pytest.mark.parametrize("store_size", [2**30, 0])
@pytest.mark.parametrize("disk", [True, False])
def test_kept_states_are_the_ones_that_were_read(
    store_size: int, disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama")
    source = ModelItems(model, Corpus.of(TEXTS), 16)
    sites = expand_sites(None, model.anatomy)
    folder = tmp_path / "kept" if disk else None
    plan = plan_storage(["tokens", "mean"], len(sites), source.lengths, model.width, store_size)
    items, layers = np.array([4, 1, 2]), [0, 3]
    with ModelReader(model, source, sites, "raw", ["tokens", "mean"]) as reader:
        expected, mask = reader.read_all(items)["tokens"]
        for attempt in range(2 if disk and store_size else 1):
            if attempt:  # what is on disk is not computed again
                monkeypatch.setattr(reader, "read_all", lambda *_: pytest.fail("the model was run"))
            states = open_states(reader, plan, folder, Silent())["tokens"]
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
    tokens, pooled = 3 * 100 * 10 * 8, 3 * 100 * 8

    def how(store_size: int) -> dict[str, str]:
        return plan_storage(["tokens", "mean"], 3, [10] * 100, 8, store_size).how

    assert how(4 * (tokens + pooled)) == {"mean": "float32", "tokens": "float32"}
    assert how(2 * tokens)["tokens"] == "none"


def test_statistics_against_numpy() -> None:
    model = tiny_model("llama")
    source = ModelItems(model, Corpus.of(TEXTS), 16)
    sites = expand_sites(None, model.anatomy)
    with ModelReader(model, source, sites, "raw", ["tokens"]) as reader:
        plan = plan_storage(["tokens"], len(sites), source.lengths, model.width, 2**30)
        states = open_states(reader, plan, None, Silent())["tokens"]
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
