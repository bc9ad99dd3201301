"""The mean over several templates: exported with a file of its own that must be trusted, and only where passes were allowed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.errors import LayerscopeError
from layerscope.exporting import verifying
from layerscope.improving import Improved
from layerscope.improving.judging import Panel
from layerscope.models.sealed import seal
from layerscope.selection.judges import ScoredCandidates
from tests.exporting.conftest import reload_here
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

sentence_transformers = pytest.importorskip("sentence_transformers")
TEXTS = some_texts(50)


def prefer(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    """A judge that likes one template best."""
    asked = Panel.judge

    def judge(self, reader, readouts, *given):
        found = asked(self, reader, readouts, *given)
        ahead = np.array([2.0 * (readout.template == template) for readout in readouts])[:, None]
        return ScoredCandidates(found.score + ahead, found.draws + ahead[..., None], judge=found.judge)

    monkeypatch.setattr(Panel, "judge", judge)


OPTIONS = {"judge": "none", "templates": ["one-word", "topic"], "max_length": 96, "progress": False, "max_cost": 2}


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> Improved:
    folder = tmp_path_factory.mktemp("blend")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LAYERSCOPE_CACHE", str(folder / "cache"))
        patched.setattr(verifying, "reload", reload_here)
        prefer(patched, "blend")
        return layerscope.improve(tiny_model("llama"), TEXTS, out=folder / "better", **OPTIONS)


@pytest.mark.slow  # quickly: in this process, and `test_fresh_process` of another folder
def test_its_code_is_verified_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "blend")
    run = layerscope.improve(tiny_model("llama"), TEXTS, out=tmp_path / "better", **OPTIONS)
    assert (run.folder / "blend.py").exists()
    assert run.manifest["evidence"]["passes"] == 2


def test_the_folder_gives_the_mean_over_the_templates(blend: Improved) -> None:
    assert blend.choice.readout.startswith("blend/last/")
    assert blend.manifest["evidence"]["passes"] == 2
    loaded = sentence_transformers.SentenceTransformer(str(blend.folder), trust_remote_code=True, local_files_only=True)
    texts = [*TEXTS[:5], "a", " ".join(TEXTS[:20])]  # the last is cut
    theirs, ours = loaded.encode(texts), blend.encode(texts)
    assert np.abs(1 - (theirs * ours).sum(1)).max() < 1e-5
    assert np.allclose(np.linalg.norm(theirs, axis=1), 1, atol=1e-5)
    assert np.allclose(blend.sampled["after"][0], blend._encode([blend.sampled["texts"][0]])[0], atol=1e-5)


@pytest.mark.usefixtures("here")
def test_the_vectors_are_those_of_the_definition(blend: Improved) -> None:
    """The mean of the centered unit vectors under each template, from two models of one template each."""
    total = 0
    for name in ("one-word", "topic"):
        readout = f"{name}/{blend.choice.readout.split('/', 1)[1]}"
        place = Path(str(blend.folder)).parent / name
        mean = blend._encode.__self__.centered.means[name]
        one = layerscope.export(
            tiny_model("llama"),
            blend.choice.layer,
            readout=readout,
            out=place,
            mean=(mean, "texts"),
            max_length=96,
            normalize=True,
        )
        total = total + sentence_transformers.SentenceTransformer(str(one.path), local_files_only=True).encode(TEXTS[:6])
    wanted = total / np.linalg.norm(total, axis=1, keepdims=True)
    np.testing.assert_allclose(blend.encode(TEXTS[:6]), wanted, atol=1e-5)


def test_its_code_is_run_only_where_it_is_trusted(blend: Improved) -> None:
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        sentence_transformers.SentenceTransformer(str(blend.folder), local_files_only=True)
    notes = " ".join(blend.warnings)
    assert "trust_remote_code=True" in notes
    assert "no code of its own is layer" in notes
    assert "max_cost=1" in notes
    card = (blend.folder / "README.md").read_text()
    assert "trust_remote_code=True" in card
    assert "no code of its own is layer" in card
    assert "trust_remote_code=True).encode" in str(blend)
    code = (blend.folder / "blend.py").read_text()
    assert "layerscope" not in code


def test_a_blend_is_read_back_with_the_code_that_is_installed(blend: Improved) -> None:
    assert np.allclose(layerscope.load_run(blend.folder).encode(TEXTS[:3]), blend.encode(TEXTS[:3]), atol=1e-4)
    file = blend.folder / "blend.py"
    own = file.read_text()
    try:
        file.write_text("raise SystemError('this must not run')")
        with pytest.raises(LayerscopeError, match=r"blend.py is damaged"):
            layerscope.load_run(blend.folder).encode(TEXTS[:3])
        seal(blend.folder)  # whoever changes the code can change its checksum too
        assert np.allclose(layerscope.load_run(blend.folder).encode(TEXTS[:3]), blend.encode(TEXTS[:3]), atol=1e-4)
    finally:
        file.write_text(own)
        seal(blend.folder)


@pytest.mark.usefixtures("here")
def test_without_further_passes_no_code_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "topic")
    options = {"judge": "none", "templates": ["one-word", "topic"], "max_length": 96, "progress": False}
    result = layerscope.improve(tiny_model("llama"), TEXTS, out=tmp_path / "better", **options)
    assert not list(result.folder.glob("*.py"))
    assert not any("trust_remote_code" in note for note in result.warnings)
    assert not result.manifest["evidence"]["needs_trust"]
