"""The study of extreme prompts: how prompts are changed, the numbers, what it says where there are
none, and resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_independent import layer_entropies
from tests.tiny import VOCAB, build_tiny, tiny_model, tiny_tokenizer

import layerscope
from layerscope.data.items import content_key
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.models import wrap
from layerscope_paper.studies import extreme
from layerscope_paper.studies.extreme import Prompt, plain_vocabulary, prefix, randomized, repeated
from layerscope_paper.studies.run import study


def cells(run: layerscope.Profile | object, **where: object) -> np.ndarray:
    table = run.table  # type: ignore[attr-defined]
    for name, value in where.items():
        table = table[table[name] == value]
    return table.sort_values("layer")["value"].to_numpy()


def test_p_0_is_the_plain_profile(texts: list[str]) -> None:
    model = tiny_model("llama")
    run = study(
        "extreme", model, data=texts, levels=[0, 1], conditions=["repetition", "randomness"]
    )
    plain = layerscope.profile(model, texts, metrics=["prompt_entropy"], final_norm="raw")
    for sink in ("keep", "drop"):
        expected = plain.curve("prompt_entropy", sink=sink)
        for condition in ("repetition", "randomness"):
            rows = run.table[
                (run.table["condition"] == condition)
                & (run.table["level"] == 0)
                & (run.table["sink"] == sink)
            ]
            for column in ("value", "ci_low", "ci_high", "n"):
                np.testing.assert_allclose(
                    rows[column], expected[column], rtol=1e-6, err_msg=column
                )


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_every_number_is_that_of_an_independent_computation(family: str, texts: list[str]) -> None:
    model = tiny_model(family)
    run = study("extreme", model, data=texts[4:], levels=[0.5], lengths=[12], seed=3)
    special = model.tokenizer.all_special_ids
    prompts = [Prompt.of(model.tokenize([t]).ids[0], special, content_key(t)) for t in texts[4:]]
    vocabulary = plain_vocabulary(VOCAB, special)
    changed = {
        ("repetition", 0.5): [repeated(p, 0.5, 3) for p in prompts],
        ("randomness", 0.5): [randomized(p, 0.5, 3, vocabulary) for p in prompts],
        ("length", 12.0): [prefix(p, 12) for p in prompts],
    }
    for (condition, level), ids in changed.items():
        for sink in ("keep", "drop"):
            expected = np.mean(
                [layer_entropies(model, row.tolist(), sink) for row in ids if len(row)], axis=0
            )
            got = cells(run, condition=condition, level=level, sink=sink)
            np.testing.assert_allclose(got, expected, atol=2e-5)


def test_one_token_cannot_be_repeated_further() -> None:
    model = tiny_model("llama")
    run = study("extreme", model, data=["a", "b"], levels=[0, 1], conditions=["repetition"])
    np.testing.assert_array_equal(
        cells(run, level=0.0, sink="keep"), cells(run, level=1.0, sink="keep")
    )
    assert any("fewer than two tokens" in warning for warning in run.manifest["warnings"])


def test_equal_states_have_no_entropy_and_are_noted(texts: list[str]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = (
        None  # nothing in front of the text, as in Pythia or SmolLM2
    )
    run = study(
        "extreme",
        wrap(build_tiny("llama"), tokenizer, "bare"),
        data=texts,
        levels=[0, 0.5, 1],
        conditions=["repetition"],
    )
    last = run.table[run.table["level"] == 1]
    assert last["value"].isna().all()
    assert (last["n"] == 0).all()
    assert any("same state at layers 0–3" in warning for warning in run.manifest["warnings"])
    assert (
        run.verdict[0]
        == "In short: in the middle half of the layers, prompt entropy falls with more repetition."
    )
    assert run.verdict[1].startswith("Repetition (p = 0 → 0.5): prompt entropy falls")
    assert run.table[run.table["level"] == 0.5]["value"].notna().all()


def test_one_token_behind_a_special_one_has_no_entropy_at_layer_0(texts: list[str]) -> None:
    model = tiny_model("llama")  # its tokenizer puts a token in front of the text
    run = study("extreme", model, data=texts, levels=[0, 1], conditions=["repetition"])
    last = run.table[run.table["level"] == 1].set_index(["sink", "layer"])["value"]
    assert last["keep", 0] != last["keep", 0]  # two states, one direction: not 2.1e-15 but no value
    assert last["drop", 0] != last["drop", 0]
    assert last[last.index.get_level_values("layer") > 0].notna().all()
    assert any(
        "all have the same state at layer 0;" in warning for warning in run.manifest["warnings"]
    )


@pytest.mark.usefixtures("no_figure")
def test_an_interrupted_study_resumes(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"data": texts, "levels": [0, 0.5, 1], "lengths": [8], "out": tmp_path / "run"}
    model = tiny_model("llama")
    whole = study("extreme", model, **{**settings, "out": tmp_path / "whole"})
    calls = 0
    own = extreme.measure_prompts

    def counted(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return own(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(extreme, "measure_prompts", counted)
    with pytest.raises(KeyboardInterrupt):
        study("extreme", model, **settings)
    run = study("extreme", model, **settings)
    assert calls == 4 + 3  # plain and two levels were there; three are left of the six
    np.testing.assert_array_equal(run.table["value"], whole.table["value"])
    study("extreme", model, **settings)
    assert calls == 7


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"levels": [2]}, "from 0 to 1"),
        ({"levels": []}, "empty list"),
        ({"lengths": [0]}, "1 or more"),
        ({"levels": "x"}, "takes a number"),
    ],
)
def test_invalid_settings_are_refused(
    options: dict[str, object], phrase: str, texts: list[str]
) -> None:
    with pytest.raises(LayerscopeError, match=phrase):
        study("extreme", tiny_model("llama"), data=texts, **options)
    with pytest.raises(UnknownNameError, match="Did you mean 'repetition'"):
        study("extreme", tiny_model("llama"), data=texts, conditions="repetitio")


SPECIAL = [0, 1, 2]
PROMPT = Prompt.of([1, 10, 11, 12, 13, 14, 10, 2], SPECIAL, key=2**63 + 7)

prompts = st.builds(
    lambda ids, key: Prompt.of([1, *ids, 2], SPECIAL, key),
    st.lists(st.integers(3, 50), min_size=1, max_size=30),
    st.integers(0, 2**64 - 1),
)


@given(prompts, st.floats(0, 1), st.integers(0, 5))
def test_repetition_keeps_the_count_and_draws_from_the_prompt(
    prompt: Prompt, p: float, seed: int
) -> None:
    out = repeated(prompt, p, seed)
    assert len(out) == len(prompt)
    assert (out[[0, -1]] == prompt.ids[[0, -1]]).all()
    assert set(out) <= set(prompt.ids)


@given(prompts, st.floats(0, 1), st.integers(0, 5))
def test_randomness_keeps_the_count_and_draws_no_special_token(
    prompt: Prompt, p: float, seed: int
) -> None:
    vocabulary = plain_vocabulary(60, SPECIAL)
    out = randomized(prompt, p, seed, vocabulary)
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
    assert (randomized(PROMPT, 0, 0, plain_vocabulary(60, SPECIAL)) == PROMPT.ids).all()
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
        share = float(
            (randomized(long, p, 1, plain_vocabulary(50_000, SPECIAL)) != long.ids).mean()
        )
        assert abs(share - p) < 4 * (p * (1 - p) / 5000) ** 0.5 + 1e-3


def test_draws_depend_on_the_prompt_and_the_seed_alone() -> None:
    vocabulary = plain_vocabulary(5000, SPECIAL)
    assert (randomized(PROMPT, 1, 4, vocabulary) == randomized(PROMPT, 1, 4, vocabulary)).all()
    assert (randomized(PROMPT, 1, 4, vocabulary) != randomized(PROMPT, 1, 5, vocabulary)).any()
    other = Prompt(PROMPT.ids, PROMPT.is_text, PROMPT.key + 1)
    assert (randomized(PROMPT, 1, 4, vocabulary) != randomized(other, 1, 4, vocabulary)).any()


@pytest.mark.parametrize(
    ("length", "expected"), [(8, [1, 10, 11, 12, 13, 14, 10, 2]), (3, [1, 10, 2]), (9, []), (1, [])]
)
def test_prefixes_keep_what_the_tokenizer_adds(length: int, expected: list[int]) -> None:
    assert prefix(PROMPT, length).tolist() == expected


def test_a_prompt_of_special_tokens_is_left_alone() -> None:
    bare = Prompt.of([1, 2], SPECIAL, 0)
    assert (repeated(bare, 1, 0) == bare.ids).all()
    assert (randomized(bare, 1, 0, plain_vocabulary(9, SPECIAL)) == bare.ids).all()
