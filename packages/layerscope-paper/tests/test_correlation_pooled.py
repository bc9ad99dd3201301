"""Inference over tasks and models: the false positives on unrelated smooth curves, and the power on
related ones."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from layerscope_paper.correlation import Correlations, correlate, maths, over_models, pooled

LAYERS, DRAWS = 13, 99
MEASURES = list(maths.MEASURES)
ALLOWED = (0.02, 0.07)  # around 5 %


def walks(rng: np.random.Generator, tasks: int, common: float = 1.0) -> np.ndarray:
    """Curves of several tasks that share a part, as those of one model do: steps are exchangeable,
    so permuting them is exact."""
    steps = common * rng.normal(size=(1, LAYERS)) + rng.normal(size=(tasks, LAYERS))
    return steps.cumsum(axis=1)


def one_model(
    measure: str, rng: np.random.Generator, tasks: int, related: float = 0.0
) -> dict[str, float]:
    """A metric that goes with all tasks by the share `related`, or is a walk of its own; the row of
    the mean over tasks."""
    ys = walks(rng, tasks)
    x = rng.normal(size=LAYERS).cumsum()
    x = (1 - related) * x - related * ys.mean(0) * 1.5
    curves = maths.surrogate_curves(ys, DRAWS, int(rng.integers(2**31)))
    pool = pooled.TaskPool(LAYERS)
    for i, y in enumerate(ys):
        nulls = {
            kind: maths.null_values(measure, x[None], drawn[:, i])[0]
            for kind, drawn in curves.items()
        }
        pool.add(maths.association(measure, x, y), nulls)
    return pool.row("m", measure)


# a signed and an unsigned measure in every test run, the others of their kind in `make slow`
SIMULATED = [
    m if m in ("spearman", "dcor") else pytest.param(m, marks=pytest.mark.slow) for m in MEASURES
]


@lru_cache(maxsize=8)
def unrelated(measure: str, trials: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng([11, MEASURES.index(measure)])
    return pd.DataFrame([one_model(measure, rng, 3) for _ in range(trials)])


@pytest.mark.parametrize("measure", SIMULATED)
def test_over_tasks_five_in_a_hundred_unrelated_models_are_found(measure: str) -> None:
    """No more than that by the null that suits these curves, nor by the larger of the two."""
    found = unrelated(measure)
    assert 0 < (found["p_increments"] <= 0.05).mean() <= ALLOWED[1]
    assert (found["p"] <= 0.05).mean() <= ALLOWED[1]


@pytest.mark.parametrize("measure", SIMULATED)
def test_over_models_five_in_a_hundred_sets_of_unrelated_models_are_found(measure: str) -> None:
    z = unrelated(measure)["z"].to_numpy()
    groups = z[np.random.default_rng(12).integers(0, len(z), (4000, 5))]
    signed = maths.MEASURES[measure].signed
    found = np.mean([pooled.t_test(group, signed)[1] <= 0.05 for group in groups])
    # of two nulls the weaker counts: fewer are found, and unsigned scores lie below 0 on average
    assert (ALLOWED[0] if signed else 0.0) <= found <= ALLOWED[1], found


@pytest.mark.parametrize("measure", ["spearman", "dcor"])
def test_related_models_are_found(measure: str) -> None:
    """In each of them the metric is half its own walk, half the tasks': rarely enough for one
    model, enough for six."""
    rng = np.random.default_rng(13)
    rows = pd.DataFrame([one_model(measure, rng, 3, related=0.5) for _ in range(240)])
    alone = (rows["p"] <= 0.05).mean()
    z = rows["z"].to_numpy().reshape(40, 6)
    together = np.mean(
        [pooled.t_test(group, maths.MEASURES[measure].signed)[1] <= 0.05 for group in z]
    )
    assert together >= 0.8, (alone, together)
    assert together > alone
    if measure == "spearman":
        assert rows["z"].mean() < -1


def test_a_t_test_over_tasks_would_find_far_more() -> None:
    """What is wrong with taking tasks for independent trials: they share the model's curve."""
    rng, beyond = np.random.default_rng(14), 0
    for _ in range(200):
        ys, x = walks(rng, 8), rng.normal(size=LAYERS).cumsum()
        beyond += (
            stats.ttest_1samp([maths.association("spearman", x, y) for y in ys], 0).pvalue <= 0.05
        )
    assert beyond / 200 > 0.3  # instead of 0.05


def test_surrogates_of_several_curves_stay_as_alike() -> None:
    rng = np.random.default_rng(0)
    for n in (12, 13):
        ys = rng.normal(size=(4, n)).cumsum(axis=1)
        drawn = maths.surrogate_curves(ys, 20, 3)
        shape = maths.shape_of(ys[:, :-1])
        about = ys[:, :-1] - shape
        for curves in drawn["random phase"][..., :-1]:
            np.testing.assert_allclose(
                (curves - shape) @ (curves - shape).T, _centered_products(about), atol=1e-8
            )
        for curves in drawn["permuted increments"][..., :-1]:
            steps = np.diff(curves - shape)
            np.testing.assert_allclose(
                steps @ steps.T, np.diff(about) @ np.diff(about).T, atol=1e-8
            )
        alone = maths.surrogate_curves(ys[0], 20, 3)
        together = maths.surrogate_curves(ys[:1], 20, 3)
        for kind in alone:
            np.testing.assert_array_equal(alone[kind], together[kind][:, 0])


def _centered_products(curves: np.ndarray) -> np.ndarray:
    centered = curves - curves.mean(1, keepdims=True)
    return centered @ centered.T


def test_t_against_scipy() -> None:
    values = np.random.default_rng(1).normal(0.4, 1, size=7)
    for two_sided, alternative in ((True, "two-sided"), (False, "greater")):
        t, p = pooled.t_test(values, two_sided)
        expected = stats.ttest_1samp(values, 0, alternative=alternative)
        assert (t, p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    assert pooled.t_test(np.full(4, 2.0))[0] == pytest.approx(
        2.0 / (pooled.LEAST_SPREAD / 2)
    )  # equal scores are no certainty
    assert pooled.t_test(np.zeros(4))[1] == 1.0


def test_normal_scores() -> None:
    null = np.arange(99.0)
    assert pooled.normal_score(49.0, [null], True) == pytest.approx(0.0, abs=1e-9)
    assert pooled.normal_score(1e9, [null], True) == pytest.approx(stats.norm.ppf(99.5 / 100))
    assert (
        pooled.normal_score(20.0, [null, null - 50], True) == 0.0
    )  # below one null, above the other
    assert pooled.normal_score(20.0, [null, null - 50], False) < 0


def model(seed: int, follows: bool) -> Correlations:
    rng = np.random.default_rng(seed)
    ys = walks(rng, 3)
    x = -ys.mean(0) if follows else rng.normal(size=LAYERS).cumsum()
    metrics = pd.DataFrame({"metric": "m", "layer": range(LAYERS), "value": x})
    metrics = pd.concat(
        [metrics, metrics.assign(metric="other", value=rng.normal(size=LAYERS).cumsum())]
    )
    scores = pd.DataFrame(
        [{"task": f"t{t}", "layer": k, "score": ys[t, k]} for t in range(3) for k in range(LAYERS)]
    )
    return correlate(metrics, scores, measures=["spearman", "dcor"], surrogates=99, bootstrap=100)


def test_tables_over_tasks_and_models() -> None:
    found = {f"model {seed}": model(seed, follows=True) for seed in range(5)}
    one = found["model 0"]
    row = one.over_tasks.set_index(["metric", "measure"]).loc[("m", "spearman")]
    single = one.tasks[(one.tasks["metric"] == "m") & (one.tasks["measure"] == "spearman")]["value"]
    assert row["value"] == pytest.approx(single.mean())
    assert (row["tasks"], row["layers"]) == (3, LAYERS)
    assert row["p"] == max(row["p_phase"], row["p_increments"])
    assert set(one.as_dict()) >= {"over_tasks", "layers", "tasks", "within"}
    result = over_models(found)
    table = result.table.set_index(["metric", "measure"])
    assert table.loc[("m", "spearman"), "p_adjusted"] < 0.05
    assert table.loc[("m", "spearman"), ["models", "families", "same_sign"]].tolist() == [5, 5, 1.0]
    assert table.loc[("m", "spearman"), "p_adjusted"] >= table.loc[("m", "spearman"), "p"]
    assert table.loc[("other", "spearman"), "p"] > table.loc[("m", "spearman"), "p"]
    assert len(result.models) == 20
    assert all(
        math.isfinite(v)
        for v in result.table[["value", "z", "t", "p", "p_adjusted"]].to_numpy().ravel()
    )


def test_relatives_are_one_unit() -> None:
    found = {f"model {seed}": model(seed, follows=True) for seed in range(4)}
    result = over_models(found, {"model 0": "a", "model 1": "a", "model 2": "b", "model 3": "c"})
    assert set(result.table["families"]) == {3}
    z = result.models[
        (result.models["metric"] == "m") & (result.models["measure"] == "spearman")
    ].set_index("model")["z"]
    means = [(z["model 0"] + z["model 1"]) / 2, z["model 2"], z["model 3"]]
    row = result.table.set_index(["metric", "measure"]).loc[("m", "spearman")]
    assert row["z"] == pytest.approx(np.mean(means))
    few = over_models(found, dict.fromkeys(found, "a"))
    assert few.table.empty
    assert few.undefined[0]["reason"] == "1 families of models, at least 3 are needed"
