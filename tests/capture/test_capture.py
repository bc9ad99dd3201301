"""One forward pass: the right states under each `final_norm`, no more of the pass than needed, and
nothing left behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from layerscope.capture import Anatomy, Capture, Tap, expand_sites
from layerscope.capture.hooks import apply_norm
from layerscope.errors import ModelError
from layerscope.models import LoadedModel
from tests.capture.support import capture_states, hooks_on
from tests.tiny import GENERIC_FAMILIES, TINY_FAMILIES, tiny_model

EVERY = (*TINY_FAMILIES, *GENERIC_FAMILIES)
MAMBAS = ("mamba", "mamba2", "falcon_mamba")


def some_ids(rows: int = 2, length: int = 7) -> Tensor:
    return torch.randint(10, 200, (rows, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("family", EVERY)
def test_final_norm_settings_against_the_models_own_hidden_states(family: str) -> None:
    model, ids = tiny_model(family), some_ids()
    with torch.inference_mode():
        out = model.module(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True
        )
        theirs = list(out.hidden_states)
        if (
            family in MAMBAS
        ):  # their list has no embeddings, and ends with the last block both raw and normed
            assert len(theirs) == 4
            theirs = [model.module.get_input_embeddings()(ids), *theirs[:-2], theirs[-1]]
        raw, hf, applied = (capture_states(model, ids, how) for how in ("raw", "hf", "applied"))
        assert len(raw) == len(hf) == len(applied) == len(theirs) == 4
        for ours, own in zip(hf, theirs, strict=True):
            assert torch.equal(ours, own)
        for ours, own in zip(raw[:-1], theirs[:-1], strict=True):
            assert torch.equal(ours, own)
        norm = model.anatomy.final_norm
        for normed, state in zip(applied, raw, strict=True):
            assert torch.equal(normed, state if norm is None else norm(state))
    if norm is not None:
        assert not torch.allclose(raw[-1], hf[-1], atol=1e-2)
        assert not torch.allclose(raw[1], applied[1], atol=1e-2)


def test_branches_are_never_normed_and_mid_is() -> None:
    model, ids = tiny_model("llama"), some_ids()
    sites = ["block.1.attn", "block.1.mid", "block.1.mlp", "block.2"]
    raw, hf, applied = (capture_states(model, ids, how, sites) for how in ("raw", "hf", "applied"))
    for branch in (0, 2):
        assert torch.equal(raw[branch], applied[branch])
        assert torch.equal(raw[branch], hf[branch])
    assert torch.equal(raw[1], hf[1])
    with torch.inference_mode():
        assert torch.equal(applied[1], model.anatomy.final_norm(raw[1]))


def test_unknown_final_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="applied, raw, hf"):
        Capture(tiny_model().anatomy, [], "none")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("last", "calls"), [("embed", 0), ("block.0", 1), ("block.1.attn", 2), ("block.2", 3)]
)
def test_the_pass_ends_at_the_last_site(last: str, calls: int) -> None:
    model, count = tiny_model("llama"), [0]
    handles = [
        block.register_forward_pre_hook(lambda *_: count.__setitem__(0, count[0] + 1))
        for block in model.anatomy.blocks
    ]
    norms = [0]
    handles.append(
        model.anatomy.final_norm.register_forward_hook(
            lambda *_: norms.__setitem__(0, norms[0] + 1)
        )
    )
    capture_states(model, some_ids(), "raw", ["embed", last])
    # the input of a block is read before the block runs, by a hook that comes after the counting
    # one
    assert count[0] == max(calls, 1)
    assert norms[0] == 0
    for handle in handles:
        handle.remove()


def test_one_pass_reads_every_site_once() -> None:
    model, seen, passes = tiny_model("llama"), [], [0]
    sites = expand_sites(["embed", "block.*", "block.*.*"], model.anatomy)

    def forward() -> None:
        passes[0] += 1
        model.forward(some_ids(), torch.ones_like(some_ids()))

    with Capture(model.anatomy, sites, "applied") as capture:
        capture.run(forward, lambda i, *_: seen.append(i))
        assert seen == list(range(len(sites)))
        assert passes[0] == 1
        capture.run(forward, lambda i, *_: seen.append(i))
    assert seen == 2 * list(range(len(sites)))


@pytest.fixture
def model() -> Iterator[LoadedModel]:
    model = tiny_model("llama")
    before = hooks_on(model.module)
    yield model
    assert hooks_on(model.module) == before


@pytest.mark.parametrize(
    "error", [RuntimeError, KeyboardInterrupt, torch.OutOfMemoryError, SystemExit]
)
@pytest.mark.parametrize("where", ["block", "read"])
def test_hooks_go_whatever_happens(
    model: LoadedModel, error: type[BaseException], where: str
) -> None:
    def boom(*_: object) -> None:
        raise error("boom")

    handle = model.anatomy.blocks[1].register_forward_pre_hook(boom) if where == "block" else None
    before = hooks_on(model.module)
    sites = expand_sites(None, model.anatomy)
    states: list[weakref.ref[Tensor]] = []

    def read(index: int, raw: Tensor, _norm: nn.Module | None) -> None:
        states.append(weakref.ref(raw))
        if where == "read" and index == 1:
            boom()

    def run() -> None:
        with Capture(model.anatomy, sites, "raw") as capture:
            assert hooks_on(model.module) > before
            capture.run(lambda: model.forward(some_ids(), torch.ones_like(some_ids())), read)

    with pytest.raises(error):
        run()
    assert hooks_on(model.module) == before
    if handle is not None:
        handle.remove()
    gc.collect()
    assert len(states) == 2
    assert not any(ref() is not None for ref in states)


def test_nothing_stays_alive_after_a_pass(model: LoadedModel) -> None:
    states: list[weakref.ref[Tensor]] = []

    def read(_index: int, raw: Tensor, norm: nn.Module | None) -> None:
        assert raw.is_inference()  # no graph that would keep earlier states
        states.extend([weakref.ref(raw), weakref.ref(apply_norm(norm, raw))])

    with Capture(model.anatomy, expand_sites(None, model.anatomy), "applied") as capture:
        capture.run(lambda: model.module(input_ids=some_ids()), read)
        gc.collect()
        assert len(states) == 8
        assert not any(ref() is not None for ref in states)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mamba", "bert", "gemma3"])
def test_a_model_works_as_before_after_a_stopped_pass(family: str) -> None:
    model, ids = tiny_model(family), some_ids()
    with torch.inference_mode():
        before = model.module(input_ids=ids, output_hidden_states=True)
        capture_states(model, ids, "raw", ["block.0"])
        after = model.module(input_ids=ids, output_hidden_states=True)
    assert len(after.hidden_states) == len(before.hidden_states)
    assert torch.equal(after.last_hidden_state, before.last_hidden_state)


def test_a_site_that_is_never_reached_is_an_error(model: LoadedModel) -> None:
    astray = Anatomy("llama", [*model.anatomy.blocks[:2], nn.Identity()], None)
    with pytest.raises(
        ModelError, match=r"never reached block\.2: the llama family does not describe this model"
    ):
        capture_states(
            LoadedModel(model.module, model.tokenizer, astray, "astray"), some_ids(), "raw"
        )


def test_input_taps_find_states_given_by_name() -> None:
    class Named(nn.Module):
        def forward(self, *, mask: Tensor, hidden_states: Tensor) -> tuple[Tensor, None]:
            return hidden_states + 1, None

    block, state = Named(), torch.zeros(1, 2, 3)
    anatomy = Anatomy("toy", [block], None, taps=[{"mid": Tap(block, "input")}])
    seen: list[Tensor] = []
    with Capture(anatomy, expand_sites(["embed", "block.0"], anatomy), "raw") as capture:
        capture.run(
            lambda: block(mask=torch.ones(1, 2), hidden_states=state),
            lambda _site, raw, _norm: seen.append(raw),
        )
    assert torch.equal(seen[0], state)
    assert torch.equal(seen[1], state + 1)
