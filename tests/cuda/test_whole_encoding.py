"""Texts encoded on a GPU into a store: the vectors that a CPU gives, every kind at every layer,
each at its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from layerscope.capture import expand_sites
from layerscope.core.readout import all_readouts, kinds_of
from layerscope.core.templates import get_template
from layerscope.models import LoadedModel, wrap
from layerscope.vectors import VectorStore, encoder, text_key
from layerscope.vectors.encode import encode, find_missing
from layerscope.vectors.encoder import EncodeRequest
from tests.tiny import build_tiny, tiny_tokenizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TEXTS = [f"{'some words ' * (i * 7 % 13)}{i}" for i in range(300)]
DEVICE = "cuda"


def encoded(
    device: str, family: str, template: str, folder: Path, batch_size: int | None = None
) -> dict[str, np.ndarray]:
    model: LoadedModel = wrap(
        build_tiny(family).to(device), tiny_tokenizer(family == "bert"), name=family
    )
    kinds = kinds_of(all_readouts([template], has_cls=family == "bert", has_norm=family != "bert"))
    sites = tuple(expand_sites(None, model.anatomy))
    request = EncodeRequest(get_template(template), sites, tuple(kinds), 96, batch_size)
    missing = find_missing(model, VectorStore(folder), [request], TEXTS)
    encode(model, missing)
    space = missing[0].space
    keys = [text_key(text) for text in TEXTS]
    return {
        f"{kind} {site.name}": space.read(keys, kind, site.name) for kind in kinds for site in sites
    }


@pytest.mark.parametrize("kept", ["on the GPU", "on the host"])
@pytest.mark.parametrize("template", ["plain", "echo", "one-word"])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_every_text_at_its_place(
    family: str, template: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = encoded("cpu", family, template, tmp_path / "cpu")
    if kept == "on the host":
        monkeypatch.setattr(encoder, "fits_on_device", lambda *given: False)
    got = encoded(DEVICE, family, template, tmp_path / "gpu", batch_size=64)
    assert set(got) == set(want)
    for name, vectors in want.items():
        np.testing.assert_allclose(
            got[name], vectors, atol=2e-4 * np.abs(vectors).max(), rtol=0, err_msg=name
        )
