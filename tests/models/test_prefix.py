"""Tokens that all texts begin with are read once, and the states are those of whole passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerscope.capture import expand_sites
from layerscope.core.templates import get_template
from layerscope.models import LoadedModel, modules
from layerscope.models.prefix import SharedPrefix, common_tokens
from layerscope.vectors.encoder import EncodeRequest, TextEncoder
from tests.tiny import GENERIC_FAMILIES, TINY_FAMILIES, tiny_model

TEXTS = [
    "a dog",
    "a cat sat on the mat, and the dog looked on",
    "naïve 🙂",
    "x",
    "",
    "somewhat longer than that",
]
WHOLE = {"mamba", "falcon_mamba", "mamba2", "bert", "roberta", "xlm_roberta", "camembert", "mpnet", "modernbert", "eurobert",
         "electra", "distilbert"}  # fmt: skip
"""Families that are run whole: no ordinary cache, or tokens that see later ones."""


def vectors(
    model: LoadedModel, kinds: list[str], template: str = "step-by-step"
) -> tuple[dict, dict, int]:
    """Vectors and numbers of the texts, and how many tokens the model was run on."""
    sites = tuple(expand_sites(None, model.anatomy))
    encoder = TextEncoder(model, EncodeRequest(get_template(template), sites, tuple(kinds), 96))
    run, tokens = modules.run, []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            modules,
            "run",
            lambda module, ids, *rest, **named: (
                tokens.append(ids.numel()),
                run(module, ids, *rest, **named),
            )[1],
        )
        encoded = encoder.encode(TEXTS)
    return encoded.vectors, encoded.numbers, sum(tokens)


@pytest.mark.parametrize("family", [*TINY_FAMILIES, *GENERIC_FAMILIES])
def test_every_family_gives_the_states_of_whole_passes(family: str) -> None:
    kinds = ["last/raw", "last/applied"]
    model, whole = tiny_model(family), tiny_model(family)
    whole.shares_prefixes = False
    vectors(model, kinds)  # the first time the model is tried
    found, numbers, tokens = vectors(model, kinds)
    expected, told, all_tokens = vectors(whole, kinds)
    for kind in kinds:
        scale = np.abs(expected[kind]).max((1, 2), keepdims=True)
        assert (np.abs(found[kind] - expected[kind]) / scale).max() < 1e-5
    np.testing.assert_array_equal(numbers["tokens"], told["tokens"])
    assert bool(model.shares_prefixes) is (family not in WHOLE)
    assert (tokens < 0.8 * all_tokens) is (family not in WHOLE)


def test_other_poolings_read_every_token() -> None:
    model = tiny_model("llama")
    own = 'Before it: "{text}" and after it'
    found, _, _ = vectors(model, ["mean/raw", "last/raw"], own)
    assert model.shares_prefixes is None  # not even tried
    whole = tiny_model("llama")
    whole.shares_prefixes = False
    np.testing.assert_array_equal(
        found["mean/raw"], vectors(whole, ["mean/raw", "last/raw"], own)[0]["mean/raw"]
    )


def test_a_model_whose_cache_gives_other_states_is_run_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, whole = tiny_model("llama"), tiny_model("llama")
    whole.shares_prefixes = False
    repeat = SharedPrefix._cache_for

    def wrong(self: SharedPrefix, texts: int) -> object:
        cache = repeat(self, texts)
        cache.layers[1].values.mul_(1.01)
        return cache

    monkeypatch.setattr(SharedPrefix, "_cache_for", wrong)
    found = vectors(model, ["last/raw"])[0]["last/raw"]
    assert model.shares_prefixes is False
    np.testing.assert_array_equal(found, vectors(whole, ["last/raw"])[0]["last/raw"])


def test_texts_longer_than_the_window_are_run_whole() -> None:
    model = tiny_model("gemma3")
    rows = [[7] * 40, [7] * 30 + [8]]
    assert SharedPrefix.of(model, rows, limit=20) is not None
    model.module.config.sliding_window = 39
    assert SharedPrefix.of(model, rows, limit=20) is None


def test_what_is_not_worth_it_is_not_shared() -> None:
    model = tiny_model("llama")
    assert SharedPrefix.of(model, [[1, 2, 5, 6], [1, 2, 7]], limit=10) is None  # two tokens
    assert (
        SharedPrefix.of(model, [[1, 2, 3, *range(10, 90)], [1, 2, 3, *range(20, 90)]], limit=10)
        is None
    )  # of eighty
    first = SharedPrefix.of(model, [[1, 2, 3, 4], [1, 2, 3, 5, 6]], limit=10)
    assert first is not None
    assert first.ids == [1, 2, 3]
    assert SharedPrefix.of(model, [[1, 2, 3, 9], [1, 2, 3, 5]], limit=10, previous=first) is first
    assert (
        SharedPrefix.of(model, [[2, 2, 3, 9], [2, 2, 3, 5]], limit=10, previous=first) is not first
    )


def test_one_token_of_every_text_is_left() -> None:
    assert common_tokens([[1, 2, 3], [1, 2, 3]], limit=9) == 2
    assert common_tokens([[1, 2, 3], [2, 2, 3]], limit=9) == 0
    assert common_tokens([[1, 2, 3, 4]], limit=2) == 2
    assert common_tokens([], limit=2) == 0


def test_weights_that_are_not_numbers_are_still_named() -> None:
    model = tiny_model("llama")
    model.anatomy.blocks[1].mlp.down_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(Exception, match=r"NaN in the states at block\.1"):
        vectors(model, ["last/raw"])
