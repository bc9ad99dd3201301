"""Names of sites and layers, and the text of layer ranges."""

from __future__ import annotations

import pandas as pd
import pytest

from layerscope.core.sites import PARTS, layer_ranges, part_of, site_of, whole_layers


def test_a_layer_is_read_after_the_block_before_it() -> None:
    assert [site_of(layer) for layer in range(3)] == ["embed", "block.0", "block.1"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_told_from_the_layer(part: str) -> None:
    assert part_of(f"block.12.{part}") == part
    assert part_of("block.12") is None


def test_whole_layers_leaves_parts_and_empty_sites_out() -> None:
    table = pd.DataFrame(
        {"site": ["embed", "block.0.attn", "block.0", "block.10.mlp", "block.10", None, "block"]}
    )
    assert whole_layers(table)["site"].tolist() == ["embed", "block.0", "block.10"]


@pytest.mark.parametrize(
    ("layers", "text"),
    [([], []), ([3], ["3"]), ([2, 1, 2], ["1–2"]), ([9, 1, 2, 3, 8], ["1–3", "8–9"])],
)
def test_ranges(layers: list[int], text: list[str]) -> None:
    assert layer_ranges(layers) == text
