"""Probes read the states that the model computes, whatever a batch holds and however they are
kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.capture import expand_sites
from layerscope.data import Corpus
from layerscope.engines import LocalEngine
from layerscope.models import LoadedModel
from layerscope.probing.states import ItemStates, Runner, TokenStates
from layerscope.progress import Silent
from tests.tiny import tiny_model

TEXTS = ["a", "some words", "no", "many more words than that", "one two three"]


def item_states(model: LoadedModel, final_norm: str = "applied") -> ItemStates:
    sites = expand_sites(None, model.anatomy)
    runner = Runner(LocalEngine(), None, None, Silent())
    return ItemStates(model, Corpus.of(TEXTS), 16, sites, final_norm, runner)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("final_norm", ["applied", "raw", "hf"])
def test_states_are_those_of_each_text_alone(family: str, final_norm: str) -> None:
    model = tiny_model(family)
    with item_states(model, final_norm) as states:
        assert states.has_class_token is (family == "bert")
        together = states.tokens(np.arange(5))
        means = states.vectors(np.arange(5), "mean")
        classes = states.vectors(np.arange(5), "class") if family == "bert" else None
        for i in range(5):
            alone = states.tokens(np.array([i]))[:, 0]
            count = states.lengths[i]
            assert alone.shape[1] == count
            torch.testing.assert_close(together[:, i, :count], alone, rtol=1e-4, atol=1e-5)
            assert (together[:, i, count:] == 0).all()
            np.testing.assert_allclose(means[:, i], alone.mean(1), rtol=1e-4, atol=1e-5)
            if classes is not None:
                np.testing.assert_allclose(classes[:, i], alone[:, 0], rtol=1e-4, atol=1e-5)


def test_kept_states_are_the_computed_ones() -> None:
    with item_states(tiny_model("llama")) as states:
        numbers = np.array([3, 1, 4, 0])
        kept, computed = (TokenStates(states, numbers, size) for size in (None, 0))
        assert kept.is_kept
        assert not computed.is_kept
        for places in (np.array([1, 2, 3]), np.array([3, 0])):
            expected = states.tokens(numbers[places])
            for found, mask in (kept.read(places), computed.read(places)):
                assert mask is not None
                assert mask.sum(1).tolist() == states.lengths[numbers[places]].tolist()
                count = expected.shape[2]
                torch.testing.assert_close(found[:, :, :count], expected, rtol=1e-4, atol=1e-5)
