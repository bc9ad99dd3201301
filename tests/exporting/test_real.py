"""Real weights: templates on real vocabularies, and folders that mteb scores as the evaluation
did."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from layerscope import evaluate
from layerscope.core.templates import get_template
from layerscope.data import load_corpus
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.exporting import export, start, verifying
from layerscope.exporting.draft import verification_texts
from layerscope.exporting.tokenizing import frame_tokenizer
from layerscope.models import LoadedModel, load
from layerscope.vectors.tokenize import tokenize_texts
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
FRAMED = [*(("minilm-l6", pattern) for pattern in PATTERNS), ("smollm2-135m", "one-word"), ("smollm2-135m", "{text} In short,"),
          *(pytest.param("smollm2-135m", pattern, marks=pytest.mark.slow) for pattern in PATTERNS[1:3])]  # fmt: skip


@pytest.mark.parametrize(("name", "pattern"), FRAMED)
def test_templates_on_real_sentences(
    loaded: Callable[[str], LoadedModel], name: str, pattern: str
) -> None:
    model, template = loaded(name), get_template(pattern)
    framed = frame_tokenizer(model, template, 256, verification_texts(brief=True))
    sentences = [
        part.strip() + "."
        for text in load_corpus("lee").texts[:30]
        for part in text.split(".")
        if part.strip()
    ]
    wanted = tokenize_texts(model, template, sentences, 256)
    fitting = [i for i, one in enumerate(wanted) if not one.truncated]
    found = framed.ids(sentences)
    assert len(fitting) > 200
    assert [found[i] for i in fitting] == [wanted[i].ids for i in fitting]


@pytest.mark.parametrize(("name", "layer", "readout"), CASES)
def test_mteb_scores_the_folder_as_the_evaluation_did(
    loaded: Callable[[str], LoadedModel],
    name: str,
    layer: int,
    readout: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data, limit = loaded(name), shared_data(), 20
    run = evaluate(
        model, ["STSBenchmark"], out=tmp_path / "run", data_dir=data, store=tmp_path / "store", sample=limit, scoring_workers=0,
        layers=[layer, -1], readouts=[readout], max_length=96,
    )  # fmt: skip
    task = resolve_tasks("STSBenchmark", data_dir=data, sample=limit)[0].load().task
    monkeypatch.setattr(verifying, "reload", reload_here)
    monkeypatch.setattr(start, "verification_texts", lambda: verification_texts(brief=True))
    # without a length the folder reads as much as the model can, and is verified on that much: a
    # minute for a model of 135M
    length = 96 if name == "smollm2-135m" else None
    done = export(
        model,
        layer,
        readout=readout,
        choice=run.path,
        store=tmp_path / "store",
        out=tmp_path / "folder",
        max_length=length,
    )
    assert done.cosine_distance < 1e-5
    folder = st.SentenceTransformer(str(done.path), device="cpu")
    row = done.facts["evidence"]["scores"][0]
    assert 100 * mteb_score(task, folder) == pytest.approx(row["score"], abs=0.01)
