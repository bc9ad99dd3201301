"""The switches that reproduce the released code (method §4 items 4 to 7), each against a reference
of its own."""

import math

import numpy as np
import pytest

from layerscope.metrics import Options
from layerscope.metrics.tokens import find_sink
from tests.metrics import reference as ref
from tests.metrics.support import compute, make_samples, measure_tokens, of_samples, pad, tensor

close = pytest.approx
WIDTHS = {"N>D": 6, "N<D": 40}
both = pytest.mark.parametrize("d", WIDTHS.values(), ids=WIDTHS)


@both
@pytest.mark.parametrize("rows", ["raw", "centered", "centered-unit"])
def test_clamped_gram_of_prompts(rows, d):
    s = make_samples(8, d, longest=12)
    options = Options(clamp_gram=True, rows=rows)
    expected = [ref.clamped_entropy(ref.prepare(t, rows)) for t in s.tokens if len(t) <= d]
    short = [t for t in s.tokens if len(t) <= d]
    states, mask = pad(short)
    ours = compute("prompt_entropy", states, options, mask=mask).value
    assert ours == close(np.mean(expected), abs=1e-9)
    out = measure_tokens(states, mask, find_sink(states, mask), options)
    assert out.entropy["keep"].numpy() == close(np.array(expected), abs=1e-9)
    dropped = [
        ref.clamped_entropy(ref.prepare(ref.without(t, ref.sink(t)[0]), rows)) for t in short
    ]
    assert out.entropy["drop"].numpy() == close(np.array(dropped), abs=1e-9)


def test_clamped_gram_of_a_prompt_longer_than_wide():
    """The D×D side is clamped there."""
    t = np.random.default_rng(0).normal(size=(11, 4))
    ours = compute("prompt_entropy", tensor(t)[None], Options(clamp_gram=True)).value
    assert ours == close(ref.clamped_entropy(ref.prepare(t, "centered-unit")), abs=1e-9)


@both
def test_absolute_curvature(d):
    s = make_samples(10, d)
    options = Options(curvature_absolute=True)
    expected = np.array([ref.curvature(t, absolute=True) for t in s.tokens])
    ours = of_samples("curvature", s, options=options).value
    assert ours == close(expected.mean(), abs=1e-9)
    assert ours < of_samples("curvature", s).value
    states, mask = pad(s.tokens)
    out = measure_tokens(states, mask, find_sink(states, mask), options, entropy=False)
    assert out.curvature["keep"].numpy() == close(expected, abs=1e-9)
    dropped = [ref.curvature(t, absolute=True, drop=ref.sink(t)[0]) for t in s.tokens]
    assert out.curvature["drop"].numpy() == close(np.array(dropped), abs=1e-9, nan_ok=True)


def test_dime_stays_on_the_sample_side_where_that_is_smaller():
    s = make_samples(20, 40)
    for options in (Options(dime_feature_side=True), Options()):
        a = of_samples("dime", s, options).value
        assert a == close(of_samples("dime", s).value, abs=1e-12)


# Groups: consecutive rows in order of arrival, whatever the batches and the keys
# --------------------------------------

GROUP = 6  # 20 prompts: groups of 6, 6, 6 and 2


@both
@pytest.mark.parametrize("rows", ["centered", "centered-unit"])
def test_groups_of_pooled_vectors(rows, d):
    s = make_samples(20, d)
    prepared = ref.prepare_in_groups(s.pooled, rows, GROUP)
    options = Options(group=GROUP, pooled_rows=rows)
    ours = of_samples("dataset_entropy", s, options)
    assert ours.value == close(ref.matrix_entropy(prepared), abs=1e-9)
    rank = of_samples("effective_rank", s, options)
    assert rank.value == close(math.exp(ref.renyi(ref.singular_values(prepared), 1.0)), rel=1e-9)
    assert ours.value != close(of_samples("dataset_entropy", s).value, abs=1e-4)


@both
def test_groups_of_views(d):
    s = make_samples(20, d)
    options = Options(
        group=GROUP, view_rows="centered-unit", lidar_rows="centered-unit", permutations=3
    )
    views = np.stack(
        [ref.prepare_in_groups(s.views[:, i], "centered-unit", GROUP) for i in range(4)], axis=1
    )
    ours = of_samples("infonce", s, options).value
    assert ours == close(ref.infonce(views[:, 0], views[:, 1]), abs=1e-9)
    assert of_samples("lidar", s, options).value == close(ref.lidar(views), abs=1e-9)
    order = np.argsort(s.keys)
    expected = ref.dime(views[order, 0], views[order, 1], ref.permutations(20, 3, 0))
    assert of_samples("dime", s, options).value == close(expected, abs=1e-9)


@both
def test_groups_follow_arrival(d):
    """That is what makes the released numbers depend on the order of the data, as ours do not."""
    s = make_samples(20, d)
    order = np.random.default_rng(0).permutation(20)
    values = []
    for group in (GROUP, None):
        values.append(of_samples("dataset_entropy", s, Options(group=group), order=order).value)
    assert values[0] == close(
        ref.matrix_entropy(ref.prepare_in_groups(s.pooled[order], "centered-unit", GROUP)), abs=1e-9
    )
    assert values[0] != close(
        ref.matrix_entropy(ref.prepare_in_groups(s.pooled, "centered-unit", GROUP)), abs=1e-6
    )
    assert values[1] == close(ref.dataset_entropy(s.pooled), abs=1e-9)


def test_groups_do_not_touch_rows_that_are_not_centered():
    s = make_samples(20, 6)
    for rows in ("raw", "unit"):
        options = Options(group=GROUP, pooled_rows=rows)
        grouped = of_samples("dataset_entropy", s, options).value
        assert grouped == close(ref.dataset_entropy(s.pooled, rows=rows), abs=1e-9)
