"""A model's folder that is damaged or odd: one line says what is wrong with it."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from layerscope.errors import LayerscopeError, ModelError
from layerscope.models import load
from layerscope.models.source import resolve
from layerscope.profiling import profile


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


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
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_modules_that_are_no_list(folder: Path) -> None:
    (folder / "modules.json").write_text("null")
    with pytest.raises(ModelError, match=r"modules\.json is not a JSON list but NoneType"):
        load(folder)


def test_a_model_type_that_is_no_text(folder: Path) -> None:
    change(folder / "config.json", model_type={})
    with pytest.raises(ModelError, match="names a model_type that is not text"):
        load(folder)


def test_a_name_cannot_speak_to_the_terminal(folder: Path) -> None:
    odd = folder.rename(folder.with_name("red \x1b[31m\nmodel"))
    model = load(odd)
    assert model.name == "red \N{REPLACEMENT CHARACTER}[31m model"
    with pytest.raises(ModelError) as caught:
        load(odd / "\x1b[2Jnothing")
    assert "\x1b" not in str(caught.value)


def test_a_tokenizer_without_its_unknown_token(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "<unk>"}
    content["added_tokens"] = []
    content["pre_tokenizer"], content["post_processor"], content["decoder"] = (
        {"type": "Whitespace"},
        None,
        None,
    )
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(LayerscopeError) as caught:
        load(folder).tokenize(["a b something"], 8)
    assert "cannot tokenize a text" in str(caught.value)
    with pytest.raises(LayerscopeError, match="cannot tokenize a text"):
        profile(
            folder,
            [f"a b and {i} others" for i in range(300)],
            metrics=["prompt_entropy"],
            max_length=8,
        )


@pytest.mark.parametrize(
    "value", [[1], "x", 5, {"quant_method": []}, None, {"quant_method": "gptq"}]
)
def test_a_quantization_is_told_only_where_it_is_one(folder: Path, value: Any) -> None:
    change(folder / "config.json", quantization_config=value)
    named = isinstance(value, dict) and value["quant_method"] == "gptq"
    assert resolve(folder).quantization == (
        "gptq" if named else None
    )  # what transformers makes of it is its own error


def test_a_reason_of_several_lines_is_one(folder: Path) -> None:
    change(folder / "config.json", hidden_size="32")
    with pytest.raises(ModelError, match="could not be loaded from") as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) == 1
