"""The three image models of layerscope-zoo: whole, small, of one size, and trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from layerscope.core.files import sha256_of
from layerscope.core.runs import MARKER
from layerscope.models import MODELS, catalogue, load

NAMES = ["vision-supervised", "vision-mae", "vision-ar"]
FAMILIES = {"vision-supervised": "vit", "vision-mae": "vit_mae", "vision-ar": "aim"}


def test_together_they_are_small_and_of_one_size() -> None:
    files = [file for name in NAMES for file in MODELS.get(name).fetch().iterdir()]
    assert sum(file.stat().st_size for file in files) < 5e6
    entries = [catalogue()[name] for name in NAMES]
    assert len({(entry.blocks, entry.width) for entry in entries}) == 1
    assert max(e.parameters for e in entries) / min(e.parameters for e in entries) < 1.05


@pytest.mark.parametrize("name", NAMES)
def test_whole_and_as_declared(name: str) -> None:
    entry, folder = catalogue()[name], MODELS.get(name).fetch()
    assert MODELS.get(name).is_cached()
    facts = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    assert facts["weights_sha256"] == sha256_of(folder / "model.safetensors")
    assert "train_vision_set.py" in (folder / "README.md").read_text(encoding="utf-8")
    model = load(name)
    assert (model.n_blocks, model.width, model.identity["parameters"]) == (
        entry.blocks,
        entry.width,
        entry.parameters,
    )
    assert model.identity["family"] == FAMILIES[name]
    assert model.identity["license"] == entry.license


@pytest.mark.parametrize("name", NAMES)
def test_positions_and_blocks_were_trained(name: str) -> None:
    """Patches that trade places give other states (positions are there), and every block changes
    what it is given."""
    model = load(name)
    torch.manual_seed(0)
    pixels = torch.randn(2, 1, 28, 28)
    swapped = torch.cat([pixels[..., 14:], pixels[..., :14]], dim=-1)
    with torch.inference_mode():
        one, two = (
            model.run(model.make_batch(list(np.asarray(x)))).last_hidden_state
            for x in (pixels, swapped)
        )
    order = (
        torch.arange(one.shape[1] - model.anatomy.leading).view(4, 4).roll(2, dims=1).flatten()
        + model.anatomy.leading
    )
    assert not torch.allclose(one[:, order], two[:, model.anatomy.leading :], atol=1e-2)
