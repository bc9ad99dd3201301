"""A model family from outside the package: one file and an entry point, and its model is
profiled."""

from __future__ import annotations

from pathlib import Path

import pytest

import layerscope
from layerscope.models.families import FAMILIES
from tests.tiny import build_tiny, tiny_tokenizer

FAMILY = """
from layerscope.models.families import Family

MYSTERY = Family(
    name="mystery",
    model_types=("mystery",),
    blocks="layers",
    final_norm="norm",
    taps={"attn": "self_attn", "mlp": "mlp"},
    residual="sequential",
)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the family, as pip would leave it."""
    info = tmp_path / "site" / "mystery_family-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mystery-family\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[layerscope.families]\nmystery = mystery_family:MYSTERY\n"
    )
    (tmp_path / "site" / "mystery_family.py").write_text(FAMILY)
    known = FAMILIES.all()  # before the package is there
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(FAMILIES, "_things", known)
    monkeypatch.setattr(FAMILIES, "_loaded", False)


@pytest.mark.usefixtures("installed")
def test_a_family_from_outside_is_profiled(texts: list[str], tmp_path: Path) -> None:
    module = build_tiny("llama")
    module.config.model_type = "mystery"
    model = layerscope.wrap(module, tiny_tokenizer(), name="mystery-model")
    assert model.identity["family"] == "mystery"
    run = layerscope.profile(model, texts, metrics=["prompt_entropy"], out=tmp_path / "run")
    assert sorted(run.table["layer"].dropna().unique()) == list(range(model.n_blocks + 1))


def test_without_it_the_blocks_are_looked_for() -> None:
    module = build_tiny("llama")
    module.config.model_type = "mystery"
    assert layerscope.wrap(module, tiny_tokenizer()).identity["family"] == "generic"
