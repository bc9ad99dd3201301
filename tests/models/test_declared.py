"""A model's files must fit each other before anything is built: sizes that were only declared cost nothing."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from layerscope.errors import ModelError
from layerscope.models import load
from layerscope.models.declared import tensor_shapes


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 10**6), ("intermediate_size", 10**9), ("num_hidden_layers", 10**9), ("vocab_size", 2**40),
        ("num_attention_heads", 10**7), ("max_position_embeddings", 10**12), ("hidden_size", 1e9),
    ],
)  # fmt: skip
def test_sizes_that_the_weights_do_not_have(folder: Path, name: str, value: Any) -> None:
    change(folder / "config.json", **{name: value})
    with pytest.raises(ModelError, match=rf"config\.json declares {name} [\d,]+, which cannot be: its weights have \d+ tensors"):
        load(folder)


def test_a_token_far_beyond_the_weights(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["bomb"] = 2**31 - 1
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="gives a token the id 2,147,483,647, far beyond the weights"):
        load(folder)


@pytest.mark.parametrize("how", ["empty", "short", "long header", "no json", "beyond", "list"])
def test_weights_whose_header_is_damaged(folder: Path, how: str) -> None:
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    name = next(iter(name for name in header if name != "__metadata__"))
    header[name]["data_offsets"] = [0, 10**15]
    moved = json.dumps(header).encode()
    file.write_bytes(
        {
            "empty": b"", "short": raw[:1000], "long header": struct.pack("<Q", 2**60) + raw[8:],
            "no json": raw[:8] + b"\xff" * length + raw[8 + length :],
            "beyond": struct.pack("<Q", len(moved)) + moved + raw[8 + length :],
            "list": struct.pack("<Q", 2) + b"[]" + raw[8 + length :],
        }[how]
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        tensor_shapes(file)
    with pytest.raises(ModelError):
        load(folder)


def test_modules_that_are_no_list(folder: Path) -> None:
    (folder / "modules.json").write_text("null")
    with pytest.raises(ModelError, match=r"modules\.json is not a JSON list but null"):
        load(folder)


def test_a_model_type_that_is_no_text(folder: Path) -> None:
    change(folder / "config.json", model_type={})
    with pytest.raises(ModelError, match="names a model_type that is no text"):
        load(folder)


def test_a_name_cannot_speak_to_the_terminal(folder: Path) -> None:
    odd = folder.rename(folder.with_name("red \x1b[31m\nmodel"))
    model = load(odd)
    assert model.name == "red \N{REPLACEMENT CHARACTER}[31m model"
    with pytest.raises(ModelError) as caught:
        load(odd / "\x1b[2Jnothing")
    assert "\x1b" not in str(caught.value)
