"""Token measures of several sites together, and which kernel gives their entropies."""

from __future__ import annotations

import pytest
import torch

from layerscope.metrics import Options, spectrum_entropy
from layerscope.metrics.tokens import find_sink
from layerscope_gpu import token_measures
from layerscope_gpu.reducing import sum_in_groups
from layerscope_gpu.token_measures import Request, prepare_tokens, solve_tokens, token_entropy


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 64, 100])
def test_sums_in_groups(tokens):
    states = torch.randn(3, tokens, 6).to(torch.bfloat16)
    states[:, 0] *= 1000
    torch.testing.assert_close(
        sum_in_groups(states), states.double().sum(1), rtol=1e-6, atol=1e-3 * 2**-10
    )


def test_solving_sites_together_changes_nothing(monkeypatch):
    monkeypatch.setattr("layerscope_gpu.token_measures.can_prepare_gram", lambda *_: False)
    request = Request(Options())
    states = [torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    prepared = [prepare_tokens(x, None, find_sink(x).position, request) for x in states]
    for x, entropies in zip(states, solve_tokens(prepared, Options()), strict=True):
        alone = solve_tokens([prepare_tokens(x, None, find_sink(x).position, request)], Options())
        for name in ("keep", "drop"):
            torch.testing.assert_close(entropies[name], alone[0][name], rtol=0, atol=1e-6)


def test_which_kernel_an_entropy_waits_for():
    for n, name in ((128, "small_eigenvalues("), (512, "to_band(")):
        assert name in str(token_measures.entropy_kernel(n, Options())), n
    assert token_measures.entropy_kernel(128, Options(alpha=2.0)) is None  # without eigenvalues
    assert token_measures.entropy_kernel(1200, Options()) is None  # cuSOLVER's


def test_determinants_are_asked_for_where_they_give_the_entropy(monkeypatch):
    def exact(matrices: torch.Tensor, overwrite: bool) -> torch.Tensor | None:
        assert overwrite
        return None if len(matrices) < 3 else matrices.new_zeros(len(matrices)).double()

    x = torch.randn(4, 5, 9, generator=torch.Generator().manual_seed(3)).double()
    gram = x @ x.mT
    monkeypatch.setattr(token_measures, "exact_entropy", exact)
    assert (token_entropy(gram.clone(), Options()) == 0).all()
    want = spectrum_entropy(torch.linalg.eigvalsh(gram))
    found = token_entropy(gram[:2].clone(), Options())  # it could not be used
    torch.testing.assert_close(found, want[:2])
    # other orders; entries cut off make eigenvalues negative
    for options in (Options(alpha=3.0), Options(clamp_gram=True)):
        assert (token_entropy(gram.clone(), options) > 0).all()
