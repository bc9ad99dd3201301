"""Every pooling at every site against numpy on unpadded states, and means without the sink from
what is stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from layerscope.capture import Anatomy, Batch, expand_sites, make_batch
from layerscope.capture.pooling import Pooler, drop_sink
from layerscope.core.templates import POOLINGS
from layerscope.errors import NonFiniteStatesError
from layerscope.models import LoadedModel
from tests.capture.support import hooks_on
from tests.evaluation.support import pool_by_hand, read_by_hand
from tests.tiny import tiny_model

KINDS = [
    f"{what}/{norm}" for what in (*POOLINGS, "max-drop", "sink") for norm in ("raw", "applied")
]
ROWS = [
    [1, 40, 41, 42, 43, 44, 45],
    [1, 60],
    [1, 77, 70, 71, 99, 98, 97, 96, 95, 94],
    [1],
    [1, 50, 51, 52],
]
SPANS = [(0, 7), (1, 2), (4, 9), (0, 1), (2, 3)]


def pooled(
    model: LoadedModel,
    rows: list[list[int]],
    spans: list[tuple[int, int]],
    kinds: list[str] = KINDS,
):
    batch = make_batch(rows, model.pad_id)
    with Pooler(model.anatomy, expand_sites(None, model.anatomy), kinds) as pooler:
        vectors, numbers = pooler.pool(batch, spans, lambda b: model.run(b))
    return {kind: some.numpy() for kind, some in vectors.items()}, numbers


@pytest.mark.parametrize("whole", [True, False], ids=["whole texts", "spans"])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "bert", "mamba"])
def test_every_kind_at_every_site(family: str, whole: bool) -> None:
    model = tiny_model(family)
    spans = [(0, len(row)) for row in ROWS] if whole else SPANS
    vectors, numbers = pooled(model, ROWS, spans)
    assert hooks_on(model.module) == 0
    assert list(vectors) == KINDS
    assert numbers["tokens"].tolist() == [b - a for a, b in spans]
    outside = 0
    for i, (ids, span) in enumerate(zip(ROWS, spans, strict=True)):
        raw, normed = read_by_hand(model, ids, family)
        for layer in range(model.n_blocks + 1):
            sink = int(np.argmax(np.linalg.norm(raw[layer], axis=-1)))
            inside = span[0] <= sink < span[1]
            outside += not inside
            assert numbers["sink"][layer, i] == (sink - span[0] if inside else -1)
            for kind in KINDS:
                what, norm = kind.split("/")
                states = (normed if norm == "applied" else raw)[layer]
                pooling = what.removesuffix("-drop")
                wanted = (
                    states[sink]
                    if what == "sink"
                    else pool_by_hand(raw[layer], states, span, pooling, "drop" in what)
                )
                np.testing.assert_allclose(
                    vectors[kind][layer, i],
                    wanted,
                    rtol=2e-4,
                    atol=2e-5,
                    err_msg=f"{kind} {layer} {i}",
                )
                if what in ("mean", "wmean"):
                    sinks, at = vectors[f"sink/{norm}"][layer, [i]], numbers["sink"][layer, [i]]
                    found = drop_sink(
                        what, vectors[kind][layer, [i]], sinks, numbers["tokens"][[i]], at
                    )[0]
                    wanted = pool_by_hand(raw[layer], states, span, what, True)
                    np.testing.assert_allclose(found, wanted, rtol=5e-4, atol=5e-5)
    assert (outside > 0) != whole


def test_a_norm_makes_a_difference_where_there_is_one() -> None:
    """Otherwise the comparison above would not notice a norm that is never applied."""
    for family, differs in (("llama", True), ("gpt_neox", True), ("mamba", True), ("bert", False)):
        vectors, _ = pooled(tiny_model(family), ROWS, SPANS)
        assert (np.abs(vectors["mean/raw"] - vectors["mean/applied"]).max() > 0.1) == differs


@pytest.mark.parametrize("what", ["mean", "wmean"])
def test_dropping_the_sink_equals_the_mean_of_the_rest(what: str) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([5, 9, 1, 2, 4, 3])
    sink = np.array(
        [0, 8, 0, 1, -1, 1]
    )  # first, last, all there is, last of two, outside, in the middle
    texts = [rng.normal(size=(n, 6)) for n in lengths]
    for text, place in zip(texts, sink, strict=True):
        if place >= 0:
            text[place] *= 300
    weights = [np.arange(1.0, n + 1) if what == "wmean" else np.ones(n) for n in lengths]
    whole = np.stack(
        [np.average(t, axis=0, weights=w) for t, w in zip(texts, weights, strict=True)]
    )
    states = np.stack(
        [t[s] if s >= 0 else rng.normal(size=6) * 1e6 for t, s in zip(texts, sink, strict=True)]
    )
    kept = [[j for j in range(n) if n == 1 or j != s] for n, s in zip(lengths, sink, strict=True)]
    wanted = np.stack(
        [
            np.average(t[k], axis=0, weights=w[k])
            for t, w, k in zip(texts, weights, kept, strict=True)
        ]
    )
    np.testing.assert_allclose(
        drop_sink(what, whole, states, lengths, sink), wanted, rtol=1e-9, atol=1e-9
    )
    # as float32, which is how they are stored, what is left keeps four digits beside a sink of 300
    # times its size
    stored = drop_sink(what, whole.astype(np.float32), states.astype(np.float32), lengths, sink)
    np.testing.assert_allclose(stored, wanted, atol=1e-4)


def test_what_does_not_follow_is_refused() -> None:
    nothing = np.zeros((1, 2))
    with pytest.raises(ValueError, match="'max' without the sink"):
        drop_sink("max", nothing, nothing, np.array([2]), np.array([0]))


def toy(states: torch.Tensor, kinds: list[str]) -> dict[str, np.ndarray]:
    """What is kept of given states (B, T, D) of texts that fill the batch."""
    blocks = [nn.Identity(), nn.Identity()]
    anatomy = Anatomy("toy", blocks, None)
    batch = Batch(
        torch.ones(states.shape[:2], dtype=torch.long), None, [states.shape[1]] * len(states)
    )
    with Pooler(anatomy, expand_sites(["block.*"], anatomy), kinds) as pooler:
        return pooler.pool(
            batch, [(0, states.shape[1])] * len(states), lambda _: blocks[1](blocks[0](states))
        )[0]


@pytest.mark.parametrize(
    "kinds", [["mean/raw"], ["last/raw", "mean/raw"], ["last/raw", "max/applied"]]
)
def test_nan_is_named_whichever_kind_meets_it(kinds: list[str]) -> None:
    states = torch.ones(3, 4, 2)
    states[1, 0, 0] = torch.nan  # the last token is clean
    with pytest.raises(
        NonFiniteStatesError,
        match=r"NaN in the states at block\.0 \(layer 1, float32\) for 1 of 3 texts",
    ):
        toy(states, kinds)
    states[1, 0, 0] = torch.inf
    with pytest.raises(NonFiniteStatesError, match=r"infinite values in the states at block\.0"):
        toy(states, kinds)


def test_padding_and_tokens_outside_the_span_may_be_anything() -> None:
    states = torch.full((1, 3, 2), torch.nan)
    states[0, 1] = 2.0
    blocks = [nn.Identity()]
    anatomy = Anatomy("toy", blocks, None)
    batch = Batch(torch.ones(1, 3, dtype=torch.long), None, [3])
    with Pooler(
        anatomy,
        expand_sites(["block.0"], anatomy),
        ["mean/raw", "wmean/raw", "last/raw", "max/raw"],
    ) as pooler:
        vectors, _ = pooler.pool(batch, [(1, 2)], lambda _: blocks[0](states))
    assert all((v == 2.0).all() for v in vectors.values())
