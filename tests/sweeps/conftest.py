"""Two small models as folders, two small corpora as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny import build_tiny, tiny_tokenizer

SETTINGS = {"max_length": 24, "metrics": ["prompt_entropy", "dataset_entropy"]}


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    for seed, name in enumerate(("step-20", "step-100")):
        build_tiny("llama", seed).save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    (folder / "first.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "second.txt").write_text("\n".join(text.upper() for text in texts), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def wanted(home: Path) -> dict[str, Any]:
    """What a sweep's file says: two checkpoints, a model that is not there, two corpora."""
    models = [{"checkpoints": str(home / "step-*")}, {"name": str(home / "nowhere")}]
    corpora = [str(home / "first.txt"), {"data": str(home / "second.txt"), "limit": 7}]
    return {"models": models, "corpora": corpora, "profile": SETTINGS}
