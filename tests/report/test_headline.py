"""The headline says what the choice and the curves bear out, and no more."""

from __future__ import annotations

from typing import Any

from layerscope import select
from layerscope.choose.choice import NOTHING, Choice
from layerscope.core.statistics import Interval
from layerscope.report.contents import gather
from layerscope.report.section import Section
from tests.report.synthetic import READOUTS, synthetic_evaluation, synthetic_run


def said(*runs: object) -> str:
    return " ".join(gather(runs).headline)


def choice(layer: int, gain: float | None = None, model: str = "small", **facts: Any) -> Choice:
    """A choice whose gain is the layer's alone, one point more or less."""
    interval = None if gain is None else Interval(gain, gain - 1, gain + 1)
    parts = {"gain_readout": None if gain is None else NOTHING, "gain_layer": interval, **facts}
    return Choice(layer, READOUTS[0], interval, 0.1, (layer,), "measured", 6, model, **parts)


def test_a_gain_with_its_interval_and_tasks() -> None:
    gain = "+10.0 (+9.0 to +11.0) points expected over the last layer, same readout, 95 %"
    one = synthetic_evaluation()
    assert said(one, choice(2, 10)) == f"Read layer 2 of 6 (block.1): {gain}, on STSBenchmark."
    several = synthetic_evaluation(tasks=["a", "b", "c", "d"])
    assert said(several, choice(2, 10)).endswith(f"{gain}, on average over 4 tasks.")


def test_a_last_layer_that_was_kept_is_not_called_the_best() -> None:
    kept = choice(6, abstained=True, reason="Layer 2 is best, but not surely: the last is kept.")
    text = said(synthetic_evaluation(), kept)
    assert text.startswith("Keep the last layer, layer 6 of 6 (block.5), on STSBenchmark. Layer 2")
    assert "is the best" not in text
    last = said(synthetic_evaluation(best=6), choice(6))
    assert last == "Read the last layer, layer 6 of 6 (block.5), on STSBenchmark."


def test_the_page_says_what_select_chooses() -> None:
    run = synthetic_evaluation(readouts=[READOUTS[0], READOUTS[3]], best=5, half=0.2)
    chosen = select(run)
    (mark,) = gather([run]).choices.values()
    assert (mark.layer, mark.readout, mark.gain) == (chosen.layer, chosen.readout, chosen.gain)
    words = chosen.headline().removesuffix(".").partition(": ")[2]
    assert gather([run]).headline[0].lower().startswith(words.lower())


def test_the_valley_and_the_sink() -> None:
    text = said(synthetic_run(), synthetic_evaluation())
    assert "Prompt entropy has a valley at layer 3 (block.2): 1.47 nats" in text
    assert "It is the sink" in text
    assert "without that token it is 3.97." in text
    run = synthetic_run()
    rows = (run.table["metric"] == "prompt_entropy") & (run.table["sink"] == "drop")
    run.table.loc[rows & (run.table["layer"] == 3), "value"] = 1.5
    assert "It is not the sink" in said(run)
    assert "Prompt entropy has no valley" in said(synthetic_run(valley=False))


def test_the_norm_is_named_where_profiles_differ_in_it() -> None:
    text = said(synthetic_run(valley=False), synthetic_run(final_norm="raw"))
    assert "With final norm raw: Prompt entropy has a valley at layer 3" in text


def test_several_models_are_told_apart_scores_first_then_the_largest_gain() -> None:
    text = said(
        synthetic_run("c-model"),
        synthetic_evaluation("b-model", best=6),
        synthetic_evaluation("a-model", best=2),
        choice(6, model="b-model"),
        choice(2, 10, model="a-model"),
    )
    assert text.startswith("a-model: read layer 2 of 6 (block.1): +10.0")
    assert "b-model: read the last layer, layer 6 of 6" in text
    assert "c-model: Prompt entropy has a valley" in text


def test_a_choice_without_labels() -> None:
    text = said(synthetic_run(), choice(4, 1.9))
    assert "Without labels: read layer 4 of 6 (block.3): +1.9 (+0.9 to +2.9) points" in text
    last = said(synthetic_run(), choice(6))
    assert "Without labels: read the last layer, layer 6 of 6 (block.5)." in last
    both = said(synthetic_run(), synthetic_evaluation(), choice(4, 1.9))
    assert "without labels" not in both.lower()


def test_nothing_to_say() -> None:
    text = "small: no metric here has a headline of its own; the curves are below."
    assert said(Section("map", "title", "small", [])) == text
