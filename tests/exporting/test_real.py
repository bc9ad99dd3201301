"""Real weights: templates on real vocabularies, and folders that mteb scores as the evaluation
did."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerscope import evaluate
from layerscope.core.templates import get_template
from layerscope.data import load_corpus
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.exporting import export, job, verifying
from layerscope.exporting.draft import frame_tokenizer, verification_texts
from layerscope.models import LoadedModel, load
from layerscope.vectors.encoder import tokenize_texts
from tests.evaluation.support import mteb_score
from tests.evaluation.tasks.support import shared_data
from tests.exporting.conftest import reload_here

pytestmark = pytest.mark.real
st = pytest.importorskip("sentence_transformers")

CASES = [
    pytest.param("smollm2-135m", 5, "plain/mean/applied/keep/none", marks=pytest.mark.slow),
    pytest.param("smollm2-135m", 8, "plain/mean/raw/keep/none", marks=pytest.mark.slow),
    pytest.param("smollm2-135m", 26, "one-word/last/raw/keep/corpus", marks=pytest.mark.slow),
    # `test_export` has the same readout of a tiny model
    pytest.param("smollm2-135m", 8, "one-word/last/raw/keep/corpus", marks=pytest.mark.slow),
    ("minilm-l6", 3, "plain/mean/applied/keep/none"),
]


@pytest.fixture(scope="module")
def loaded() -> Callable[[str], LoadedModel]:
    """Each model is loaded once."""
    return functools.cache(load)


PATTERNS = ("one-word", "query: {text}", "Summary of {text}:\n", "{text} In short,")
FRAMED = [
    *(("minilm-l6", pattern) for pattern in PATTERNS),
    ("smollm2-135m", "one-word"),
    ("smollm2-135m", "{text} In short,"),
    *(pytest.param("smollm2-135m", pattern, marks=pytest.mark.slow) for pattern in PATTERNS[1:3]),
]


@pytest.mark.parametrize(("name", "pattern"), FRAMED)
def test_templates_on_real_sentences(
    loaded: Callable[[str], LoadedModel], name: str, pattern: str
) -> None:
    model = loaded(name)
    template = get_template(pattern)
    framed = frame_tokenizer(model, template, 256, verification_texts(brief=True))
    parts = [part.strip() for text in load_corpus("lee").texts[:30] for part in text.split(".")]
    sentences = [f"{part}." for part in parts if part]
    expected = tokenize_texts(model, template, sentences, 256)
    pairs = zip(framed.ids(sentences), expected, strict=True)
    fitting = [(ids, text.ids) for ids, text in pairs if not text.truncated]
    assert len(fitting) > 200
    assert all(ids == expected_ids for ids, expected_ids in fitting)


@pytest.mark.parametrize(("name", "layer", "readout"), CASES)
def test_mteb_scores_the_folder_as_the_evaluation_did(
    loaded: Callable[[str], LoadedModel],
    name: str,
    layer: int,
    readout: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = loaded(name)
    tasks: dict[str, Any] = {"data_dir": shared_data(), "sample": 20}
    store = tmp_path / "store"
    options: dict[str, Any] = {"layers": [layer, -1], "readouts": [readout], "max_length": 96}
    run = evaluate(
        model,
        ["STSBenchmark"],
        out=tmp_path / "run",
        store=store,
        scoring_workers=0,
        **tasks,
        **options,
    )
    task = resolve_tasks("STSBenchmark", **tasks)[0].load().task
    monkeypatch.setattr(verifying, "reload", reload_here)
    monkeypatch.setattr(job, "verification_texts", lambda: verification_texts(brief=True))
    # Without a length the folder reads as much as the model can, and is verified on that much: a
    # minute for a model of 135M.
    length = 96 if name == "smollm2-135m" else None
    evidence: dict[str, Any] = {"choice": run.path, "store": store}
    out = tmp_path / "folder"
    done = export(model, layer, readout=readout, out=out, max_length=length, **evidence)
    assert done.cosine_distance < 1e-5
    folder = st.SentenceTransformer(str(out), device="cpu")
    score = done.facts["evidence"]["scores"][0]["score"]
    assert 100 * mteb_score(task, folder) == pytest.approx(score, abs=0.01)
