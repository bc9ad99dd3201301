"""Without CUDA's libraries the next solver takes over, says so once, and is named."""

from __future__ import annotations

import warnings

import pytest
import torch

from layerscope_gpu import cuda, eigenvalues, exact_entropy
from layerscope_gpu.cuda import UnusableError
from layerscope_gpu.solvers import band, cusolver, determinants, pieces, small


@pytest.fixture(autouse=True)
def forget():
    tried = (small._trial_problem, band._trial_problem)
    caches = (
        cuda.load_library,
        eigenvalues._cusolver_problem,
        eigenvalues._warn_once,
        *tried,
        cuda.compiled,
    )
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_a_library_that_is_not_there():
    with pytest.raises(UnusableError, match=r"libnothing\.so was not found"):
        cuda.load_library("libnothing.so")


def test_an_old_library_has_no_batched_solver(monkeypatch):
    class Old:
        pass

    monkeypatch.setattr(cusolver, "load_library", lambda name: Old())
    with pytest.raises(UnusableError, match=r"CUDA 12\.6"):
        cusolver._library()


def test_torch_takes_over_and_says_so_once(monkeypatch):
    monkeypatch.setattr(eigenvalues.small, "usable", lambda index, n: "no compiler")
    monkeypatch.setattr(eigenvalues.band, "usable", lambda index, n: "no compiler")
    monkeypatch.setattr(eigenvalues, "_cusolver_problem", lambda index: "no library")
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    matrices = torch.diag(torch.tensor([3.0, 1.0])).repeat(60, 1, 1)
    with pytest.warns(
        UserWarning, match=r"cannot be used \(no library\): torch\.linalg\.eigvalsh takes its place"
    ):
        assert eigenvalues._on_cuda(matrices, False)[0].tolist() == [1.0, 3.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eigenvalues._on_cuda(matrices, False)


def test_which_matrices_go_where(monkeypatch):
    used = []
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(eigenvalues.small, "usable", lambda index, n: None if n <= 4 else "large")
    monkeypatch.setattr(eigenvalues.band, "usable", lambda index, n: None if n == 5 else "large")
    monkeypatch.setattr(eigenvalues, "_cusolver_problem", lambda index: None)
    monkeypatch.setattr(eigenvalues.small, "eigvalsh", lambda m: used.append("registers"))
    monkeypatch.setattr(eigenvalues.band, "eigvalsh", lambda m, o: used.append("band"))
    monkeypatch.setattr(eigenvalues.cusolver, "eigvalsh", lambda m, o: used.append("cusolver"))
    monkeypatch.setattr(eigenvalues, "_used", {})
    assert eigenvalues.solvers_used(0) == "none"
    single, double = torch.float32, torch.float64
    for count, n, dtype, solver in (
        (60, 4, single, "registers"),
        (3, 4, single, "registers"),
        (60, 4, double, "cusolver"),
        (60, 6, single, "cusolver"),
    ):
        eigenvalues._on_cuda(torch.zeros(count, n, n, dtype=dtype), False)
        assert used.pop() == solver
    names = eigenvalues.solvers_used(0)
    assert "register" in names
    assert "cusolver" in names
    assert "band" not in names  # no matrix went there
    assert eigenvalues.solvers_used(1) == "none"
    for count, dtype, solver in (
        (60, single, "band"),
        (3, single, "cusolver"),
        (60, double, "cusolver"),
    ):
        eigenvalues._on_cuda(torch.zeros(count, 5, 5, dtype=dtype), False)
        assert used.pop() == solver
    assert "band" in eigenvalues.solvers_used(0)


@pytest.mark.parametrize("n", [1, 2, 29, 125, 250, 518])
def test_the_matrices_that_solvers_are_tried_on_have_the_eigenvalues_that_are_known(n):
    matrices, known = pieces.known_case(n)
    assert matrices.shape == (3, n, n)
    assert torch.equal(matrices, matrices.mT)
    torch.testing.assert_close(
        torch.linalg.eigvalsh(matrices), known.expand(3, -1), atol=1e-12, rtol=0
    )
    if n > 2:
        assert not torch.allclose(matrices[0], matrices[1])
        assert (
            matrices.abs() > 1e-3 / n
        ).float().mean() > 0.9  # not a matrix that is already almost reduced


def test_two_stages_fit_for_every_size(monkeypatch):
    monkeypatch.setattr(band, "shared_memory", lambda index: 232448)
    monkeypatch.setattr(band, "_trial_problem", lambda index, how: None)
    for n in range(band.SMALLEST, band.LARGEST + 1):
        how = band.best_variant(n)
        assert n <= how.largest
        assert how.threads % 32 == how.chase_threads % 32 == 0
        assert how.threads * how.min_blocks * 128 <= 65536
        assert how.min_blocks * (how.shared(n) + 1024) <= 228 * 1024
        assert how.chase_blocks * (how.chase_shared(n) + 1024) <= 228 * 1024
        assert band.usable(0, n) is None
    assert "supports 193 to 1024" in str(band.usable(0, 192))
    assert "supports 193 to 1024" in str(band.usable(0, 1025))
    monkeypatch.setattr(band, "shared_memory", lambda index: 99 * 1024)
    assert band.usable(0, 450) is None
    assert "do not fit" in str(band.usable(0, 512))


@pytest.mark.parametrize(
    ("name", "n"), [("small_eigenvalues", 192), ("to_band", 193), ("to_band", 1024)]
)
def test_the_source_that_is_compiled_ahead_is_of_the_kernel_for_the_size(name, n):
    assert f" {name}(" in eigenvalues.kernel_source(n).replace("\n", " ")
    assert eigenvalues.kernel_source(1025) is None


def test_which_entropies_are_made_of_determinants(monkeypatch):
    made = []
    given = {n: torch.eye(n).repeat(60, 1, 1) for n in (192, 193, 300)}
    assert exact_entropy(given[193]) is None  # on a CPU
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(determinants, "shared_memory", lambda index: 232448)
    monkeypatch.setattr(
        determinants,
        "_trial_problem",
        lambda index, how: "no driver" if how.largest > 256 else None,
    )
    monkeypatch.setattr(
        determinants, "entropy", lambda m, how, o: made.append((m.shape[-1], o)) or "made"
    )
    monkeypatch.setattr(eigenvalues, "_used", {})
    assert exact_entropy(given[192]) is None  # eigenvalues are as fast
    assert exact_entropy(given[300]) is None  # as it cannot be used
    assert exact_entropy(given[193][:3]) is None  # few
    assert exact_entropy(given[193].double()) is None
    assert eigenvalues.solvers_used(0) == "none"
    assert exact_entropy(given[193], overwrite=True) == "made"
    assert made == [(193, True)]
    assert "determinants" in eigenvalues.solvers_used(0)
    monkeypatch.setattr(determinants, "shared_memory", lambda index: 40 * 1024)
    assert "do not fit" in str(determinants.usable(0, 193))
    assert exact_entropy(given[193]) is None
    assert "log_determinants" in str(eigenvalues.entropy_source(193))
    assert "small_eigenvalues" in str(eigenvalues.entropy_source(192))


def test_small_matrices_have_a_kernel_that_holds_them():
    for n in range(1, small.LARGEST + 1):
        how = small.best_variant(n)
        assert n <= how.largest
        assert f"#define TILES {how.tiles}\n" in how.source
        assert how.threads * how.min_blocks * 32 <= 65536
    assert "at most 192" in str(small.usable(0, small.LARGEST + 1))


def test_a_kernel_that_cannot_be_compiled_or_is_wrong_is_not_used(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    monkeypatch.setattr(pieces, "side_stream", lambda device: None)
    for found, reason in (
        (torch.zeros(3, 125), "its error on a known answer is 3.0e"),
        (None, "no driver"),
    ):

        def solved(matrices, variant, found=found):
            if found is None:
                raise UnusableError("no driver")
            return found

        monkeypatch.setattr(small, "eigvalsh", solved)
        small._trial_problem.cache_clear()
        assert reason in str(small.usable(0, 128))
