"""The valley: found where it is, and told apart from one outlying token."""

from __future__ import annotations

import pandas as pd
import pytest

from layerscope.profiling.run import EntropyValley, entropy_valley


def table(
    keep: list[float],
    drop: list[float] | None = None,
    ratio: float = 150.0,
    sites: list[str] | None = None,
) -> pd.DataFrame:
    rows = []
    names = sites or ["embed", *(f"block.{k}" for k in range(len(keep) - 1))]
    curves = {("prompt_entropy", "keep"): keep, ("prompt_entropy", "drop"): drop}
    curves |= {
        ("sink_ratio", "keep"): [ratio] * len(keep),
        ("sink_first", "keep"): [1.0] * len(keep),
    }
    for (metric, sink), values in curves.items():
        for layer, value in enumerate(values or []):
            rows.append([names[layer], layer, metric, "raw", sink, value])
    return pd.DataFrame(rows, columns=["site", "layer", "metric", "normalization", "sink", "value"])


def found(*args: object, **kwargs: object) -> EntropyValley:
    valley = entropy_valley(table(*args, **kwargs))  # type: ignore[arg-type]
    assert valley is not None
    return valley


def test_a_sink() -> None:
    valley = found([3.9, 4.0, 1.4, 2.0, 3.6], [3.9, 4.0, 4.0, 3.9, 3.8])
    assert (valley.layer, valley.site, valley.value) == (2, "block.1", 1.4)
    assert valley.shoulder == pytest.approx(3.6)
    assert valley.depth == pytest.approx(2.2)
    assert valley.is_sink is True
    assert valley.sentence() == (
        "Prompt entropy has a valley at layer 2 (block.1): 1.40 nats, 2.20 below its shoulders. "
        "It is the sink (token 0, 150 × the median norm): without that token it is 4.00."
    )


def test_true_compression() -> None:
    valley = found([3.9, 4.0, 1.4, 2.0, 3.6], [3.9, 4.0, 1.5, 2.1, 3.6])
    assert valley.is_sink is False
    assert "It is not the sink: without the largest token it is still 1.50." in valley.sentence()


def test_half_filled_decides() -> None:
    assert found([4.0, 2.0, 4.0], [4.0, 3.1, 4.0]).is_sink is True
    assert found([4.0, 2.0, 4.0], [4.0, 2.9, 4.0]).is_sink is False


def test_unknown_without_the_dropped_curve() -> None:
    valley = found([4.0, 2.0, 4.0])
    assert valley.is_sink is None
    assert "sink" not in valley.sentence()


@pytest.mark.parametrize(
    "flat",
    [
        [4.0, 3.9, 4.0],
        [1.0, 2.0, 3.0],
        [3.0, 2.0, 1.0],
        [1.0, 3.0, 1.0],
        [2.0, 2.0, 2.0],
        [4.0, 1.0],
        [4.0, float("nan"), 4.0],
    ],
)
def test_no_valley(flat: list[float]) -> None:
    assert entropy_valley(table(flat, flat)) is None


def test_other_metrics_only() -> None:
    held = table([4.0, 2.0, 4.0])
    assert entropy_valley(held[held["metric"] != "prompt_entropy"]) is None


def test_sites_inside_blocks_do_not_count() -> None:
    held = table(
        [4.0, 3.9, 0.5, 4.0], [4.0] * 4, sites=["embed", "block.0", "block.1.attn", "block.1"]
    )
    assert entropy_valley(held) is None
