"""How a cluster is divided among workers, and how errors come back from them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerscope.engines.cluster import Machine, Placement, check_request, place
from layerscope.engines.ray import Refusal
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import MissingExtraError

GB = 2**30


def machine(cpus: int, gpus: int = 0, memory: int = 64) -> Machine:
    return Machine(cpus, gpus, memory * GB)


@pytest.mark.parametrize(
    ("machines", "asked", "wanted"),
    [
        ([machine(8)], {}, Placement(8, 1, 0, 1)),
        ([machine(8), machine(4)], {"workers": 3}, Placement(3, 4, 0, 4)),
        ([machine(2), machine(2)], {"workers": 1}, Placement(1, 2, 0, 2)),
        (
            [machine(2)],
            {"workers": 5},
            Placement(5, 0, 0, 1),
        ),  # more than there are cores: they share
        (
            [machine(64, memory=8)],
            {"memory": 3 * GB},
            Placement(2, 32, 0, 32),
        ),  # no more copies of the model than fit
        ([machine(64, memory=1)], {"memory": 3 * GB}, Placement(1, 64, 0, 64)),
        ([machine(8, gpus=4), machine(8)], {}, Placement(4, 1, 1, 2)),
        ([machine(8, gpus=4)], {"gpus": 2}, Placement(2, 1, 2, 4)),
        ([machine(8, gpus=1)], {"gpus": 0.5}, Placement(2, 1, 0.5, 4)),
        ([machine(8, gpus=4)], {"gpus": 0}, Placement(8, 1, 0, 1)),
    ],
)
def test_known_clusters(
    machines: list[Machine], asked: dict[str, float], wanted: Placement
) -> None:
    request = {"workers": None, "gpus": None, **asked}
    assert place(machines, items=100, **request) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workers", "gpus", "message"),
    [
        (0, None, "1 or more, not 0"),
        (None, -1.0, "not -1"),
        (None, 1.5, r"not 1\.5"),
    ],
)
def test_wrong_requests(workers: int | None, gpus: float | None, message: str) -> None:
    with pytest.raises(LayerscopeError, match=message):
        check_request(workers, gpus)


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=5), st.integers(1, 200), st.integers(1, 100)
)
def test_workers_fit_where_they_are_asked_for(cores: list[int], workers: int, items: int) -> None:
    found = place([machine(n) for n in cores], items, workers, None)
    assert found.workers == min(workers, items)
    if found.cpus:
        assert sum(int(n // found.cpus) for n in cores) >= found.workers
        assert found.threads == found.cpus
    else:
        assert workers > sum(cores)


@pytest.mark.parametrize(
    "error",
    [UnknownNameError("site", "x", ["y"]), MissingExtraError("it", "ray"), LayerscopeError("no")],
)
def test_an_error_of_layerscope_keeps_its_class_and_words(error: LayerscopeError) -> None:
    refusal = pickle.loads(pickle.dumps(Refusal(type(error), str(error))))
    assert type(refusal.error()) is type(error)
    assert str(refusal.error()) == str(error)
