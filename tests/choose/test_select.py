"""The public function: sources, bounds, and what comes back without labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.choose import Scores, decide, layers_of
from layerscope.choose.candidates import allowed_blocks, block_limits
from layerscope.choose.choice import KEYS, lines
from layerscope.choose.select import select
from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError, RunFolderError
from tests.choose.support import evaluation, profile, valley_curve
from tests.tiny import tiny_model

TUNED = [0.8] * 20 + [0.1]
PLAIN = [0.8] * 21


def test_a_profile_gives_the_same_answer_from_memory_and_disk(tmp_path: Path) -> None:
    run = profile({"prompt_entropy": valley_curve(), "anisotropy": PLAIN})
    choice = select(run)
    assert choice == select(run.save(tmp_path / "run").path)
    assert choice.rule == "evidence"
    assert choice.blocks_saved == 20 - choice.layer > 0
    assert choice.ci_low < choice.expected_gain < choice.ci_high
    assert 0 < choice.risk_of_loss < 1 / 3
    assert list(json.loads(choice.to_json()))[: len(KEYS)] == list(KEYS)
    assert f"layer {choice.layer} of 20" in choice.headline()


@pytest.mark.parametrize(
    ("anisotropy", "facts"),
    [(TUNED, {}), (PLAIN, {"normalizes": True}), (PLAIN, {"sentence_encoder": True})],
)
def test_a_sentence_encoder_keeps_its_last_layer(
    anisotropy: list[float], facts: dict[str, bool]
) -> None:
    choice = select(profile({"prompt_entropy": [4.0] * 21, "anisotropy": anisotropy}, **facts))
    assert choice.abstained
    assert choice.layer == choice.layers
    assert (choice.expected_gain, choice.risk_of_loss, choice.blocks_saved) == (0, 0, 0)
    assert "keep the last layer" in choice.headline()
    assert ("saves", "nothing") in lines(choice)


def test_texts_without_words_keep_the_last_layer() -> None:
    model = tiny_model("llama")
    codes = [f"CC(=O)O.{'C' * i}O>>CC(=O){'C' * i}" for i in range(1, 9)]
    words = [f"card number {'one ' * i}" for i in range(1, 9)]
    for texts, lack_words in ((codes, True), (words, False)):
        run = layerscope.profile(model, texts, metrics=["prompt_entropy"], progress=False)
        assert ("lack_words" in run.manifest["corpus"]) == lack_words
        assert ("hardly made of words" in select(run).reason) == lack_words


def test_refusals(tmp_path: Path) -> None:
    run = profile({"prompt_entropy": valley_curve()})
    other = evaluation({"a": [0.5, 0.6]})
    other.manifest["model"]["weights_sha256"] = "another"
    for call, message in [
        (lambda: select(), "give their folders, not nothing"),
        (lambda: select(run, run), "one of each"),
        (lambda: select(run, other), "different models"),
        (lambda: select(run, rule="measured"), "layerscope evaluate"),
        (lambda: select(other, rule="evidence"), "layerscope profile"),
        (lambda: select(run, rule="evidense"), "evidence"),
        (lambda: select(run, rule="lowest_dime"), "lowest_dime needs dime"),
        (lambda: select(run, max_blocks=1.5), "max_blocks"),
        (lambda: select(run, tolerance=-1), "tolerance"),
        (lambda: select(run, folds=3), "folds= is for"),
        (lambda: select(3), "int"),
    ]:
        with pytest.raises(LayerscopeError, match=message):
            call()
    with pytest.raises(RunFolderError, match="holds no run"):
        select(tmp_path)


def earliest(
    gain: np.ndarray, max_blocks: float | None, tolerance: float | None, error: float = 0.0
) -> tuple[int, bool]:
    """The layer within the limits, and whether it is near the best."""
    last = len(gain) - 1
    candidates = layers_of(Readout(), range(last + 1), np.arange(last + 1) / last)
    draws = gain[:, None] + error * np.random.default_rng(0).normal(size=(last + 1, 200))
    limits = block_limits(max_blocks, tolerance, last)
    decision = decide(candidates, [Scores(gain, draws)], last, limits)
    return decision.chosen, decision.kept


@pytest.mark.parametrize(
    ("max_blocks", "tolerance", "layer"),
    [
        (None, None, 4),
        (1.0, 0.0, 4),
        (None, 1.0, 3),
        (None, 3.0, 2),
        (0.6, 0.0, 3),
        (0.5, None, 2),
        (0.2, None, 1),
    ],
)
def test_the_earliest_layer_within_tolerance_and_bound(
    max_blocks: float | None, tolerance: float | None, layer: int
) -> None:
    gain = np.array([np.nan, -5.0, 1.0, 2.5, 3.0, 0.0])
    chosen, near = earliest(gain, max_blocks, tolerance)
    assert chosen == layer
    assert near != (max_blocks in (0.6, 0.5, 0.2))


def test_ties_count_as_near_unless_a_tolerance_is_named() -> None:
    gain = np.array([np.nan, 0.0, 5.0, -9.0])
    assert earliest(gain, 1.0, None, error=2.5)[0] == 1
    assert earliest(gain, 1.0, 0.5, error=2.5)[0] == 2
    assert [allowed_blocks(share, 30) for share in (None, 1.0, 0.5, 0.01)] == [30, 30, 15, 1]


def test_a_bound_on_a_label_free_choice() -> None:
    run = profile({"prompt_entropy": valley_curve(), "anisotropy": PLAIN})
    choice, bounded = select(run), select(run, max_blocks=0.5)
    assert bounded.layer <= 10 < choice.layer
    assert any("max_blocks=" in warning for warning in bounded.warnings)
    assert bounded.expected_gain < choice.expected_gain
    lowest = profile({"infonce": [3.0 - k for k in range(21)]})
    choice = select(lowest, rule="lowest_infonce", max_blocks=0.5)
    assert (choice.layer, choice.expected_gain) == (10, None)
    assert any("allows 10 blocks" in warning for warning in choice.warnings)
