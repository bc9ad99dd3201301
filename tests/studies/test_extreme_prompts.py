"""Prompts made extreme: what is replaced, by what, and what never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerscope.studies.extreme_parts.prompts import Prompt, plain_vocabulary, prefix, randomised, repeated

SPECIAL = [0, 1, 2]
PROMPT = Prompt.of([1, 10, 11, 12, 13, 14, 10, 2], SPECIAL, key=2**63 + 7)

prompts = st.builds(
    lambda ids, key: Prompt.of([1, *ids, 2], SPECIAL, key),
    st.lists(st.integers(3, 50), min_size=1, max_size=30),
    st.integers(0, 2**64 - 1),
)


@given(prompts, st.floats(0, 1), st.integers(0, 5), st.sampled_from(["one", "each"]))
def test_repetition_keeps_the_count_and_draws_from_the_prompt(prompt: Prompt, p: float, seed: int, how: str) -> None:
    out = repeated(prompt, p, seed, how)  # type: ignore[arg-type]
    assert len(out) == len(prompt)
    assert (out[[0, -1]] == prompt.ids[[0, -1]]).all()
    assert set(out) <= set(prompt.ids)


@given(prompts, st.floats(0, 1), st.integers(0, 5))
def test_randomness_keeps_the_count_and_draws_no_special_token(prompt: Prompt, p: float, seed: int) -> None:
    vocabulary = plain_vocabulary(60, SPECIAL)
    out = randomised(prompt, p, seed, vocabulary)
    assert len(out) == len(prompt)
    assert (out[[0, -1]] == prompt.ids[[0, -1]]).all()
    changed = out != prompt.ids
    assert np.isin(out[changed], vocabulary).all()


@given(prompts, st.integers(0, 5))
def test_levels_are_nested(prompt: Prompt, seed: int) -> None:
    few, many = repeated(prompt, 0.3, seed), repeated(prompt, 0.8, seed)
    changed = few != prompt.ids
    assert (few[changed] == many[changed]).all()


def test_the_ends_of_the_scale() -> None:
    assert (repeated(PROMPT, 0, 0) == PROMPT.ids).all()
    assert (randomised(PROMPT, 0, 0, plain_vocabulary(60, SPECIAL)) == PROMPT.ids).all()
    out = repeated(PROMPT, 1, 0)
    assert out[0] == 1
    assert out[-1] == 2
    assert len(set(out[1:-1])) == 1
    assert set(out[1:-1]) <= {10, 11, 12, 13, 14}
    one = Prompt.of([1, 10, 2], SPECIAL, 5)
    assert (repeated(one, 1, 3) == one.ids).all()


def test_the_share_of_replaced_tokens_is_p() -> None:
    long = Prompt.of(range(3, 5003), SPECIAL, 9)
    for p in (0.1, 0.5, 0.9):
        share = float((randomised(long, p, 1, plain_vocabulary(50_000, SPECIAL)) != long.ids).mean())
        assert abs(share - p) < 4 * (p * (1 - p) / 5000) ** 0.5 + 1e-3


def test_draws_depend_on_the_prompt_and_the_seed_alone() -> None:
    vocabulary = plain_vocabulary(5000, SPECIAL)
    assert (randomised(PROMPT, 1, 4, vocabulary) == randomised(PROMPT, 1, 4, vocabulary)).all()
    assert (randomised(PROMPT, 1, 4, vocabulary) != randomised(PROMPT, 1, 5, vocabulary)).any()
    other = Prompt(PROMPT.ids, PROMPT.own, PROMPT.key + 1)
    assert (randomised(PROMPT, 1, 4, vocabulary) != randomised(other, 1, 4, vocabulary)).any()


@pytest.mark.parametrize(("length", "expected"), [(8, [1, 10, 11, 12, 13, 14, 10, 2]), (3, [1, 10, 2]), (9, None), (1, None)])
def test_prefixes_keep_what_the_tokenizer_adds(length: int, expected: list[int] | None) -> None:
    out = prefix(PROMPT, length)
    assert (None if out is None else out.tolist()) == expected


def test_a_prompt_of_special_tokens_is_left_alone() -> None:
    bare = Prompt.of([1, 2], SPECIAL, 0)
    assert (repeated(bare, 1, 0) == bare.ids).all()
    assert (randomised(bare, 1, 0, plain_vocabulary(9, SPECIAL)) == bare.ids).all()
