"""Names of sites: patterns, order, and what is refused with which words."""

from __future__ import annotations

import pytest
from torch import nn

from layerscope.capture import Anatomy, expand_sites
from layerscope.errors import LayerscopeError, UnknownNameError
from tests.tiny import tiny_model


def names(patterns: list[str] | None, family: str = "llama") -> list[str]:
    return [site.name for site in expand_sites(patterns, tiny_model(family).anatomy)]


def test_default_is_every_layer_in_order() -> None:
    sites = expand_sites(None, tiny_model("llama").anatomy)
    assert [s.name for s in sites] == ["embed", "block.0", "block.1", "block.2"]
    assert [s.layer for s in sites] == [0, 1, 2, 3]
    assert [s.depth for s in sites] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_order_is_that_of_the_pass_however_asked_and_without_repeats() -> None:
    asked = ["block.2", "block.1.mlp", "block.1.*", "embed", "block.*", "block.1.mid", "block.0"]
    expected = [
        "embed",
        "block.0",
        "block.1.norm1",
        "block.1.attn",
        "block.1.mid",
        "block.1.norm2",
        "block.1.mlp",
    ]
    assert names(asked) == [*expected, "block.1", "block.2"]
    assert names(asked[::-1]) == names(asked)


def test_sub_sites_of_all_blocks() -> None:
    assert names(["block.*.attn"]) == ["block.0.attn", "block.1.attn", "block.2.attn"]
    site = expand_sites(["block.1.attn"], tiny_model("llama").anatomy)[0]
    assert (site.layer, site.block, site.part, site.in_stream) == (2, 1, "attn", False)
    assert 1 / 3 < site.depth < 2 / 3
    assert expand_sites(["block.1.mid"], tiny_model("llama").anatomy)[0].in_stream


@pytest.mark.parametrize(
    "wrong", ["emb", "blocks.*", "block", "block.-1", "block.1.", "block.1.attn.q", "BLOCK.1", ""]
)
def test_unknown_names_list_what_is_valid(wrong: str) -> None:
    with pytest.raises(UnknownNameError, match=r"Valid: block\.\*.*embed"):
        names([wrong])


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'embed'"):
        names(["embd"])
    with pytest.raises(
        UnknownNameError, match=r"unknown part of a block 'atn'\. Did you mean 'attn'"
    ):
        names(["block.1.atn"])


def test_out_of_range_says_how_many_there_are() -> None:
    with pytest.raises(
        LayerscopeError, match=r"'block\.3': this model has 3 blocks, block\.0 to block\.2"
    ):
        names(["block.3"])


def test_parallel_blocks_have_no_mid() -> None:
    with pytest.raises(
        LayerscopeError,
        match=r"no 'mid' state.*gpt_neox, parallel blocks.*Valid here: norm1",
    ):
        names(["block.*.mid"], "gpt_neox")
    assert "block.0.mid" not in names(["block.*.*"], "gpt_neox")
    assert "block.0.mid" in names(["block.*.*"], "gpt_neox_sequential")


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "mamba2"])
def test_mamba_has_a_single_branch(family: str) -> None:
    assert names(["block.0.*"], family) == ["block.0.norm1", "block.0.attn"]
    for part in ("mid", "mlp", "norm2"):
        with pytest.raises(LayerscopeError, match=f"no '{part}' state.*single blocks"):
            names([f"block.0.{part}"], family)


def test_generic_models_have_no_sub_sites() -> None:
    assert names(["block.*"], "opt") == ["block.0", "block.1", "block.2"]
    with pytest.raises(LayerscopeError, match=r"no 'attn' state.*generic.*no parts of blocks"):
        names(["block.0.attn"], "opt")


def test_no_sites_at_all() -> None:
    with pytest.raises(LayerscopeError, match="no sites were chosen"):
        names([])
    with pytest.raises(LayerscopeError, match="no sites were chosen"):
        expand_sites(["block.*.*"], Anatomy("toy", [nn.Identity()], None, taps=[{}]))
