"""The study of steps inside blocks, against states that no hook has read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from study_independent import entropy, inside_llama, inside_parallel, rank
from tests.tiny import tiny_model

from layerscope.errors import LayerscopeError
from layerscope_paper.studies.run import study
from layerscope_paper.studies.sublayers import block_steps, site_of_state


@pytest.mark.parametrize(
    ("family", "inside"), [("llama", inside_llama), ("gpt_neox", inside_parallel)]
)
def test_values_and_steps_are_those_of_an_independent_computation(
    family: str, inside: Callable[..., dict[str, np.ndarray]], texts: list[str]
) -> None:
    model = tiny_model(family)
    run = study("sublayers", model, data=texts[3:8])
    states = run.table[run.table["kind"] == "state"]
    every = [inside(model, model.tokenize([text]).ids[0]) for text in texts[3:8]]
    assert set(states["site"]) == set(every[0])
    values = {}
    for metric, measure in (("prompt_entropy", entropy), ("prompt_effective_rank", rank)):
        for sink in ("keep", "drop"):
            held = states[(states["metric"] == metric) & (states["sink"] == sink)].set_index(
                "site"
            )["value"]
            for site in every[0]:
                values[metric, sink, site] = np.array(
                    [measure(prompt[site], sink) for prompt in every]
                )
                assert held[site] == pytest.approx(values[metric, sink, site].mean(), rel=2e-4), (
                    metric,
                    sink,
                    site,
                )
    steps = run.table[run.table["kind"] == "step"]
    for row in steps[
        steps["step"].isin(["attention", "residual sum", "residual sum after MLP"])
    ].itertuples():
        start = {
            "attention": f"block.{row.block}.norm1",
            "residual sum": site_of_state("stream", int(row.block)),
        }.get(row.step, f"block.{row.block}.mid")
        change = values[row.metric, row.sink, row.site] - values[row.metric, row.sink, start]
        assert row.value == pytest.approx(change.mean(), abs=2e-3)
        assert row.ci_low <= row.value <= row.ci_high


def test_sums_add_up_to_the_stream(texts: list[str]) -> None:
    run = study("sublayers", tiny_model("llama"), data=texts)
    table = run.table[(run.table["metric"] == "prompt_entropy") & (run.table["sink"] == "keep")]
    states = table[table["kind"] == "state"].set_index("site")["value"]
    steps = table[
        (table["kind"] == "step") & table["step"].str.startswith("residual sum", na=False)
    ]
    assert steps["value"].sum() == pytest.approx(states["block.2"] - states["embed"], abs=1e-9)
    mean = table[(table["kind"] == "mean step") & (table["step"] == "attention")]["value"].item()
    assert mean == pytest.approx(
        table[(table["kind"] == "step") & (table["step"] == "attention")]["value"].mean(), abs=1e-9
    )


@pytest.mark.parametrize(
    ("family", "steps", "says"),
    [
        ("mamba", {"norm", "mixer", "residual sum", "mixer → sum"}, "single branch"),
        ("gpt_neox", {"norm before attention", "attention", "norm before MLP", "MLP", "residual sum", "attention → sum",
                      "MLP → sum"}, "no state between them"),
        ("bert", {"attention", "sum and norm after attention", "MLP", "sum and norm after MLP", "attention → sum", "MLP → sum"},
         "norm comes after each sum"),
    ],
)  # fmt: skip
def test_missing_sub_sites_are_described(
    family: str, steps: set[str], says: str, texts: list[str]
) -> None:
    run = study("sublayers", tiny_model(family), data=texts[:4])
    assert set(run.table["step"].dropna()) == steps
    assert any(says in sentence for sentence in run.verdict)
    assert run.table["value"].notna().all()
    assert run.plot().axes


def test_a_family_without_named_states_is_refused(texts: list[str]) -> None:
    with pytest.raises(LayerscopeError, match="names no states inside its blocks"):
        study("sublayers", tiny_model("opt"), data=texts[:2])


def test_steps_of_a_sequential_block() -> None:
    steps = block_steps({"norm1", "attn", "mid", "norm2", "mlp"}, "sequential")
    assert [(s.start, s.end) for s in steps if s.kind == "sum"] == [
        ("stream", "mid"),
        ("mid", "output"),
    ]
    assert site_of_state("stream", 0) == "embed"
    assert site_of_state("stream", 2) == "block.1"
    assert site_of_state("attn", 2) == "block.2.attn"
