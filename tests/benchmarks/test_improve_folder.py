"""The benchmark of the exported folder, on a few texts of a real model."""

from __future__ import annotations

from pathlib import Path

import pytest
from improve_folder import ALLOWED, promised_and_found

from layerscope.exporting import verifying
from tests.exporting.conftest import reload_here

pytest.importorskip("sentence_transformers")


@pytest.mark.slow
@pytest.mark.real
def test_the_folder_of_a_real_model_scores_what_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty of TREC's questions: the same probe on the vectors of the choice and on those of plain
    sentence-transformers."""
    monkeypatch.setattr(verifying, "reload", reload_here)
    found = promised_and_found(
        "smollm2-135m", 60, ["one-word"], 4, tmp_path / "better", offline=True, progress=False
    )
    assert found["difference"] <= ALLOWED
    assert found["cosine_distance"] < 1e-5
