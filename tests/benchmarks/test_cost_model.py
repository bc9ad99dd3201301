"""The cost model: what it counts, that a fit finds what was put in, and what it predicts."""

from __future__ import annotations

import json
from pathlib import Path

import cost_model as cost
import numpy as np
import pytest

from layerscope.capture import batches
from layerscope.forward import choose_shard_size

POINTS = [
    cost.Point(prompts, tokens, width, blocks, views, disk=disk)
    for prompts in (50, 4000, 100_000)
    for tokens in (16, 700)
    for width in (64, 512, 2048)
    for blocks in (3, 24)
    for views, disk in ((0, False), (4, False), (4, True))
]
TRUE = {
    "products": 1e-15, "attention": 2e-15, "elements": 1e-12, "launches": 1e-5, "eigen": 3e-13, "gram": 4e-15, "states": 5e-12,
    "cells": 1e-7, "gram_spectra": 2e-12, "scatter_spectra": 1e-12, "scatter_products": 2e-14, "scatter_parts": 1e-3, "tall": 0.2,
    "view_spectra": 3e-12, "text_tokens": 1e-7, "view_tokens": 2e-7, "disk": 1e-9, "sites": 2e-3, "run": 3e-2,
}  # fmt: skip


def lines(points: list[cost.Point]) -> list[cost.Line]:
    return [
        {
            "device": p.device,
            **{
                name: getattr(p, name)
                for name in ("prompts", "tokens", "width", "blocks", "views", "disk")
            },
            "profile_s": sum(cost.predict(TRUE, p).values()),
            "bare_s": sum(cost.predict(TRUE, p, bare=True).values()),
        }
        for p in points
    ]


def test_counts() -> None:
    p = cost.Point(prompts=10, tokens=4, width=64, blocks=2, views=1)
    assert cost.products(p) + cost.attention(p) == 10 * 2 * 4 * (
        2 * 2 * 12 * 64**2 + 4 * 2 * 4 * 64
    )
    assert cost.eigen(p) == 2 * 10 * 3 * 4**3
    assert cost.states(p) == 10 * 2 * 3 * 4 * 64
    assert cost.cells(p) == 10 * 2 * 3
    assert cost.vector_bytes(p) == 10 * 2 * 3 * 64 * 4
    assert set(cost.KINDS) == {name for kinds in cost.CAUSES.values() for name in kinds}


def test_counts_the_batches_that_a_profile_forms() -> None:
    assert {"cpu": batches.CPU_TOKENS, "cuda": batches.GPU_TOKENS} == cost.BATCH_TOKENS
    for device in ("cpu", "cuda"):
        # so few tokens that every shard is one batch of prompts and one of views
        p = cost.Point(prompts=100_000, tokens=1, width=4096, blocks=48, views=3, device=device)
        shard = choose_shard_size(device, cost.sites(p), p.views, p.width)
        assert cost.launches(p) == pytest.approx(p.prompts / shard * 2 * p.blocks)
    assert cost.launches(cost.Point(prompts=1024, tokens=128, width=1024, blocks=12)) == 2 * 12
    assert cost.launches(cost.Point(prompts=3, tokens=128, width=1024, blocks=12)) == 12


def test_a_fit_finds_what_was_put_in() -> None:
    rows = lines(POINTS)
    found = cost.fit_lines(rows, "cuda")
    assert found.summary()[1] < 1e-6
    assert found.summary(1)[1] < 1e-6
    # where kinds of work cannot be told apart the sum is still right, also where nothing was
    # measured
    far = cost.Point(prompts=1_000_000, tokens=128, width=1024, blocks=24)
    assert found.seconds(far) == pytest.approx(sum(cost.predict(TRUE, far).values()), rel=1e-3)
    rng = np.random.default_rng(0)
    noisy = [{**row, "profile_s": row["profile_s"] * rng.uniform(0.95, 1.05)} for row in rows]
    found = cost.fit_lines(noisy, "cuda")
    for p, row in zip(POINTS, rows, strict=True):
        assert found.seconds(p) == pytest.approx(row["profile_s"], rel=0.08)
    assert 0 < found.summary()[0] <= found.summary()[1] < 0.1


def test_lines_of_another_device_do_not_count() -> None:
    rows = lines(POINTS)
    other = [{**row, "device": "cpu", "profile_s": 1e6, "bare_s": 1e6} for row in rows]
    assert (
        cost.fit_lines([*rows, *other], "cuda").coefficients
        == cost.fit_lines(rows, "cuda").coefficients
    )


def test_a_first_run_that_compiles_does_not_count() -> None:
    rows = lines(POINTS)
    rows[3] = {**rows[3], "profile_s": 1e6, "warm": False}
    found = cost.fit_lines(rows, "cuda")
    assert found.summary()[1] < 1e-6
    assert found.seconds(POINTS[3]) == pytest.approx(lines(POINTS)[3]["profile_s"], rel=1e-3)


def test_a_point_is_predicted_from_the_others() -> None:
    rows = lines(POINTS)
    rows[5] = {**rows[5], "profile_s": 2 * rows[5]["profile_s"]}
    errors = cost.left_out_errors(rows, "cuda")
    assert errors[POINTS[5]] == pytest.approx(-0.5, abs=0.01)
    assert np.median(np.abs(list(errors.values()))) < 0.01


def test_workers_share_what_is_not_done_alone() -> None:
    rows = [
        {"workers": 0, "seconds": 99.0},
        *({"workers": n, "seconds": 3 + 40 / n} for n in (1, 2, 4, 8)),
    ]
    assert cost.fit_workers(rows) == pytest.approx((3, 40, 0), abs=1e-9)


def test_predicts_a_sweep_and_names_its_bottleneck() -> None:
    found = cost.Fit({**dict.fromkeys(cost.KINDS, 0.0), "products": 1e-15, "eigen": 1e-13}, {})
    point = cost.large("cuda")
    bare = 1e6 * 128 * 24 * 24 * 1024**2 * 1e-15
    metrics = 2 * 1e6 * 25 * 128**3 * 1e-13
    sweep = cost.predict_sweep(found, point, write_gb_s=10)
    assert sweep.bare_s == pytest.approx(bare)
    assert sweep.profile_s == sweep.fitted_s == pytest.approx(bare + metrics)
    assert sweep.write_s == pytest.approx(102.4 / 10)
    assert sweep.bottleneck == "the model's forward passes"
    assert sweep.causes["token matrices and their eigenvalues"] == pytest.approx(
        metrics / (bare + metrics)
    )
    assert sweep.devices_per_disk == pytest.approx((bare + metrics) / 10.24)
    slow = cost.predict_sweep(found, point, write_gb_s=0.1)
    assert slow.profile_s == pytest.approx(1024)
    assert slow.bottleneck == "the disk that pooled vectors are written to"
    assert cost.predict_sweep(found, point).write_s is None
    # a GPU that waits for the host: no part of that is as large as the passes, all together are
    busy = cost.Fit({**found.coefficients, "text_tokens": 4e-7, "disk": 4e-10}, {})
    assert (
        cost.predict_sweep(busy, point).bottleneck
        == "the host: tokenizing texts, pooled vectors to the disk and back"
    )
    alone = cost.predict_sweep(busy, cost.large("cpu"))
    assert alone.bottleneck == "the model's forward passes"
    assert set(cost.HOST) < set(cost.CAUSES)


def test_prints_fit_and_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"machine": "a GPU"},
        *lines(POINTS),
        {"axis": "width", "skipped": [], "why": "over 3 s"},
    ]
    rows += [{"axis": "workers", "workers": n, "seconds": 40 / n} for n in (1, 2, 4)]
    file = tmp_path / "results.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["cost_model.py", str(file)])
    cost.main()
    shown = capsys.readouterr().out
    assert f"cuda: {len(POINTS)} points" in shown
    assert "1,000 models" in shown
    assert "bottleneck: " in shown
    assert "workers: 0.00 s + 40.00 s / workers" in shown
