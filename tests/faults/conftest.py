"""A hub for the tests of this folder, and its client in this process."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.faults.hub import Hub, Repository, serve
from tests.tiny import build_tiny

LINES = [f"text number {i} is here, and {'more ' * (i % 5)}words" for i in range(12)]


@pytest.fixture(scope="session")
def files(model_folder: Path) -> dict[str, bytes]:
    """The files of a tiny model."""
    return {path.name: path.read_bytes() for path in model_folder.iterdir()}


@pytest.fixture(scope="session")
def other_files(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """The same with other weights: what a branch moves to."""
    folder = tmp_path_factory.mktemp("other")
    build_tiny("llama", seed=1).save_pretrained(folder)
    return {**files, "model.safetensors": (folder / "model.safetensors").read_bytes()}


@pytest.fixture(scope="session")
def adapter_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """An adapter of the tiny model, whose weights are not zero."""
    import torch

    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    adapted = peft.get_peft_model(
        build_tiny("llama"), peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj"])
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    folder = tmp_path_factory.mktemp("adapter")
    adapted.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def parquet(**columns: list[object]) -> bytes:
    """A parquet file."""
    stream = io.BytesIO()
    pd.DataFrame(columns).to_parquet(stream)
    return stream.getvalue()


@pytest.fixture
def hub(
    files: dict[str, bytes],
    other_files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Hub]:
    """A hub with a model, a gated one, a private one, one of pickles and a dataset; the client of
    this process talks to it."""
    datasets = pytest.importorskip("datasets")
    from huggingface_hub import constants, utils

    bare = {name: content for name, content in files.items() if name != "model.safetensors"}
    texts = {
        "data/train-00000-of-00001.parquet": parquet(text=LINES),
        "README.md": b"---\nlicense: mit\n---\n",
    }
    moved = {**texts, "data/train-00000-of-00001.parquet": parquet(text=LINES[::-1])}
    known = Hub(
        models={
            "org/tiny": Repository({"main": files, "step-2": other_files}),
            "org/steps": Repository({"main": files, "step0": files, "step1000": other_files}),
            "org/gated": Repository({"main": files}, gated=True),
            "org/private": Repository({"main": files}, private=True),
            "org/pickled": Repository({"main": {**bare, "pytorch_model.bin": b"\x80\x04N."}}),
            "org/quantized": Repository({"main": {**bare, "tiny.Q4_K.gguf": b"GGUF"}}),
        },
        datasets={
            "org/texts": Repository({"main": texts, "v2": moved}),
            "org/gated-texts": Repository({"main": texts}, gated=True),
            "org/private-texts": Repository({"main": texts}, private=True),
        },
    )
    with serve(known):
        cache = tmp_path / "hf"
        monkeypatch.setenv("HF_HOME", str(cache))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        for place, name, value in (
            (constants, "ENDPOINT", known.address),
            (
                constants,
                "HUGGINGFACE_CO_URL_TEMPLATE",
                known.address + "/{repo_id}/resolve/{revision}/{filename}",
            ),
            (constants, "HF_HUB_CACHE", str(cache / "hub")),
            (constants, "HF_HUB_DISABLE_XET", True),
            (constants, "HF_HUB_OFFLINE", False),
            (constants, "HF_TOKEN_PATH", str(cache / "token")),
            (datasets.config, "HF_ENDPOINT", known.address),
            (datasets.config, "HF_DATASETS_CACHE", cache / "datasets"),
            (datasets.config, "HF_CACHE_HOME", str(cache)),
            (datasets.config, "HF_HUB_OFFLINE", False),
        ):
            monkeypatch.setattr(place, name, value, raising=False)
        utils.close_session()
        yield known
        utils.close_session()
