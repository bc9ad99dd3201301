"""Studies on real weights: what is known of SmolLM2 must come out."""

from __future__ import annotations

import pytest

from layerscope_paper.studies.run import study


@pytest.mark.real
def test_the_valley_of_smollm2_is_one_step_and_one_token() -> None:
    run = study("sublayers", "smollm2-135m", limit=2, max_length=40, device="cpu")
    table = run.table[(run.table["kind"] == "step") & (run.table["metric"] == "prompt_entropy")]
    kept, dropped = (
        table[table["sink"] == sink].set_index(["step", "block"])["value"]
        for sink in ("keep", "drop")
    )
    sums = kept[["residual sum after attention", "residual sum after MLP"]]
    assert sums.idxmin() == ("residual sum after MLP", 11)
    assert sums.min() < -2
    assert abs(dropped["residual sum after MLP", 11]) < 0.2
    assert (
        "from layer 11 to layer 12, and 1 % of it is left without the sink token" in run.verdict[0]
    )
