"""Without layerscope-gpu a GPU is used through torch's own operators, which is said once; with it,
its solvers are named."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

import layerscope_gpu
from layerscope import accelerator
from layerscope.errors import LayerscopeError
from layerscope.spectra import eigvalsh, solvers_used

THERE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def forget():
    accelerator.installed.cache_clear()
    yield
    accelerator.installed.cache_clear()


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "layerscope_gpu", None)  # importing it fails


def test_it_is_asked_for_on_a_gpu_alone() -> None:
    assert accelerator.on(THERE) is layerscope_gpu
    for other in ("cpu", "mps", "meta"):
        assert accelerator.on(torch.device(other)) is None


@pytest.mark.usefixtures("not_installed")
def test_without_it_torch_takes_its_place_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(
        UserWarning,
        match=r"layerscope-gpu is not installed: .*50 to 300 times slower.* pip install",
    ):
        assert accelerator.on(THERE) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accelerator.on(THERE) is None
        assert solvers_used("cuda") == "torch.linalg.eigvalsh on cuda"
    matrices = torch.diag(torch.tensor([3.0, 1.0])).repeat(5, 1, 1)
    used: list[int] = []
    own = torch.linalg.eigvalsh
    monkeypatch.setattr(
        torch.linalg, "eigvalsh", lambda given: used.append(len(given)) or own(given)
    )
    monkeypatch.setattr(
        "layerscope.spectra.map_concurrently", None
    )  # a CPU's way: calling it would fail
    monkeypatch.setattr(torch.Tensor, "device", THERE)
    assert eigvalsh(matrices).tolist() == [[1.0, 3.0]] * 5
    assert used == [5]


@pytest.mark.parametrize(
    ("offered", "old"), [(None, "layerscope-gpu"), (accelerator.INTERFACE + 1, "layerscope")]
)
def test_another_interface_is_refused_with_the_line_that_upgrades(
    offered, old, monkeypatch: pytest.MonkeyPatch
) -> None:
    if offered is None:
        monkeypatch.delattr(layerscope_gpu, "INTERFACE")
    else:
        monkeypatch.setattr(layerscope_gpu, "INTERFACE", offered)
    with pytest.raises(LayerscopeError, match=rf"{old} is too old\. pip install -U .*{old}"):
        accelerator.on(THERE)


def test_with_it_its_solvers_are_used_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []

    def solved(matrices: torch.Tensor, overwrite: bool) -> torch.Tensor:
        given.append((tuple(matrices.shape), overwrite))
        return torch.linalg.eigvalsh(matrices)

    monkeypatch.setattr(layerscope_gpu, "eigvalsh", solved)
    monkeypatch.setattr(layerscope_gpu, "solvers_used", lambda index: f"used on {index}")
    assert solvers_used("cuda:1") == "used on 1"
    assert "lapack" in solvers_used("cpu")
    monkeypatch.setattr(torch.Tensor, "device", THERE)
    matrices = torch.diag(torch.tensor([3.0, 1.0])).repeat(2, 3, 1, 1)
    assert eigvalsh(matrices, overwrite=True).tolist() == [[[1.0, 3.0]] * 3] * 2
    assert given == [((6, 2, 2), True)]
