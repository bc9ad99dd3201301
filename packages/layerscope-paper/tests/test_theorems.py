"""The theorems: what is broken, what holds, and that a stored counter-example is one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from layerscope.metrics.entropy import matrix_entropy
from layerscope.metrics.ranks import effective_rank as library_rank
from layerscope_paper.studies.base import STUDIES
from layerscope_paper.studies.run import study
from layerscope_paper.studies.theory import Theory
from layerscope_paper.theorems import theorems, trials
from layerscope_paper.theorems.theorems import STATEMENTS
from layerscope_paper.theorems.trials import Statement, search


def statement(theorem: str, version: str) -> Statement:
    return next(s for s in STATEMENTS if (s.theorem, s.version) == (theorem, version))


def test_theorem_1_on_a_matrix_done_by_hand() -> None:
    z = np.diag([2.0, 1.0])  # σ: 2/3, 1/3; σ²: 4/5, 1/5
    by_sigma = -(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3)
    by_square = -(4 / 5) * math.log(4 / 5) - (1 / 5) * math.log(1 / 5)
    assert trials.effective_rank(z) == pytest.approx(math.exp(by_sigma))
    assert theorems.printed_theorem1({"z": z}) == pytest.approx(by_square - by_sigma)
    assert theorems.printed_theorem1({"z": z}) < -0.1  # the printed statement is broken …
    assert theorems.corrected_theorem1({"z": z}) == pytest.approx(
        math.log(2) - by_sigma
    )  # … and the corrected one holds


def test_quantities_agree_with_the_library() -> None:
    z = trials.draw_matrix("power law", np.random.default_rng(3))["z"]
    eigenvalues = torch.from_numpy(np.linalg.eigvalsh(z @ z.T))
    assert trials.effective_rank(z) == pytest.approx(float(library_rank(eigenvalues)), rel=1e-6)
    for alpha in (0.5, 1.0, 2.0, np.inf):
        assert trials.renyi(trials.shares(z), alpha) == pytest.approx(
            float(matrix_entropy(torch.from_numpy(z), alpha)), abs=1e-6
        )


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_matrices_break_theorem_1_as_printed_and_none_the_corrected_one(count: int) -> None:
    each = count // len(trials.KINDS)
    printed = [
        search(statement("Theorem 1", "printed"), kind, each, seed=0) for kind in trials.KINDS
    ]
    corrected = [
        search(statement("Theorem 1", "corrected"), kind, each, seed=0) for kind in trials.KINDS
    ]
    assert sum(t.checks for t in corrected) == count
    assert sum(t.violations for t in printed) > count / 2
    assert sum(t.violations for t in corrected) == 0


def test_a_stored_counterexample_can_be_drawn_again() -> None:
    trial = search(statement("Theorem 1", "printed"), "two by two", 20, seed=5)
    held = json.loads(trial.counterexample)
    z = trials.draw_matrix(held["kind"], np.random.default_rng(held["seed"]))["z"]
    assert np.allclose(z, held["case"]["z"])
    assert (
        theorems.printed_theorem1({"z": z})
        == pytest.approx(held["margin"])
        == pytest.approx(trial.margin)
    )


def test_climbing_goes_towards_a_violation() -> None:
    tried = statement("Theorem 1", "printed")
    start = search(tried, "gaussian", 2, seed=0)
    climbed = search(tried, "gaussian", starts=2, steps=60, seed=0)
    assert climbed.margin < start.margin
    assert climbed.checks == 2 * 61
    held = search(statement("Theorem 1", "corrected"), "gaussian", starts=2, steps=60, seed=0)
    assert held.violations == 0
    assert 0 <= held.margin < 0.2


@pytest.mark.parametrize("theorem", ["Theorem 5", "Theorem 6"])
def test_with_the_trace_divided_out_both_theorems_are_one_identity(theorem: str) -> None:
    tried = statement(theorem, "trace divided")
    for kind in tried.kinds[1:3]:
        q = tried.draw(kind, np.random.default_rng(1))["q"]
        n = len(q)
        u = q / np.linalg.norm(q, axis=1, keepdims=True)
        cosines = u @ u.T
        wanted = 1 / n + (cosines**2 - np.eye(n)).sum() / n**2
        assert theorems.collisions(q, divided=True) == pytest.approx(wanted)
        assert theorems.collisions(q, divided=True) == pytest.approx(
            math.exp(-float(matrix_entropy(torch.from_numpy(q), 2.0)))
        )


def test_means_of_prompts_have_the_lengths_the_proofs_need() -> None:
    assert np.linalg.norm(
        theorems.draw_theorem5("N=4, D=16", np.random.default_rng(0))["q"], axis=1
    ) == pytest.approx(1 / 4)  # 1/√L
    assert np.linalg.norm(
        theorems.draw_theorem6("N=2, L=8, D=128", np.random.default_rng(0))["q"], axis=1
    ) == pytest.approx(1)  # not N/L


def test_the_epsilon_of_theorem_6_solves_the_printed_probability() -> None:
    for n, length, d in ((2, 8, 128), (4, 4, 64), (8, 64, 512)):
        printed, proved = theorems.epsilons_theorem6(n, length, d)
        for exponent in (d**3 * printed**2 / (2 * n**8), d * length**4 * proved**2 / (2 * n**8)):
            assert 1 - n**2 * math.sqrt(2 * math.pi) * math.exp(-exponent) == pytest.approx(
                theorems.PROBABILITY
            )
        case = theorems.draw_theorem6(f"N={n}, L={length}, D={d}", np.random.default_rng(0))
        assert case["epsilon"] == max(printed, proved)


def test_theorems_5_and_6_once_the_trace_is_divided_out() -> None:
    for theorem, kind in (("Theorem 5", "N=2, D=256"), ("Theorem 6", "N=2, L=8, D=128")):
        assert not search(statement(theorem, "trace divided"), kind, 12, seed=0).holds
        assert search(statement(theorem, "corrected"), kind, 12, seed=0).violations == 0
    assert search(statement("Theorem 5", "printed"), "N=4, D=16", 12, seed=0).holds
    assert not search(statement("Theorem 6", "printed"), "N=2, L=8, D=128", 12, seed=0).holds


def test_infonce_bound_is_exact_on_a_case_done_by_hand() -> None:
    # X = Z, two values, two samples, a critic that only says whether they agree: with chance ½ the
    # other sample is the same
    joint = np.diag([0.5, 0.5]) + 1e-300
    case = {"joint": joint, "critic": np.array([[50.0, 0.0], [0.0, 50.0]]), "samples": 2}
    assert theorems.infonce_bound(case) == pytest.approx(math.log(2) - 0.5 * math.log(2))
    assert theorems.mutual_information(joint) == pytest.approx(math.log(2))


def test_theorem_7_breaks_where_entropy_is_read_as_matrix_entropy() -> None:
    assert not search(statement("Theorem 7", "printed, H = S_1"), "circle", 10, seed=0).holds
    assert not search(
        statement("Theorem 7", "printed, Z continuous"), "far apart", 10, seed=0
    ).holds
    for kind in theorems.JOINTS:
        assert search(statement("Theorem 7", "printed, Z discrete"), kind, 10, seed=0).holds


def test_the_study_gives_a_table_a_verdict_and_a_figure(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(STUDIES, "_things", {**STUDIES.all(), "theory": Theory()})
    run = study("theory", out=tmp_path / "run", matrices=40, starts=1, steps=4)
    assert (tmp_path / "run" / "figure.png").stat().st_size > 10_000
    assert run.verdict[0].startswith("In short: Theorem 1")
    assert run.verdict[0].endswith("can be broken as printed, and every corrected version holds.")
    assert run.verdict[1].startswith("Theorem 1, printed")
    assert "False" in run.verdict[1]
    assert "Holds" in run.verdict[2]
    margins = run.table[run.table["metric"] == "margin"]
    assert set(margins["theorem"]) == {
        "Lemma 1",
        "Theorem 1",
        "Theorem 5",
        "Theorem 6",
        "Theorem 7",
    }
    broken = margins[margins["violations"] > 0]
    assert broken["counterexample"].map(lambda text: bool(json.loads(text)["seed"])).all()
    assert not ((margins["version"] == "corrected") & (margins["violations"] > 0)).any()
