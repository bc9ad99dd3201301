"""A pooling from outside the package is one definition: `evaluate`, `improve` and `export` know
it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.core.templates import POOLINGS, Pooling
from layerscope.errors import ExportError
from layerscope.exporting import export, verifying
from tests.evaluation.support import write_tasks
from tests.exporting.conftest import reload_here
from tests.improving.test_improve import some_texts
from tests.plugins.support import install
from tests.tiny import tiny_model

st = pytest.importorskip("sentence_transformers")

ROOT = """
from layerscope.core.templates import Pooling

ROOT = Pooling(
    "root",
    "the sum over the root of the number of tokens",
    pool=lambda states, span: states.masked_fill(~span.unsqueeze(-1), 0).sum(1) / span.sum(-1, keepdim=True) ** 0.5,
    sentence_transformers="mean_sqrt_len_tokens",
)
"""


def test_a_pooling_from_outside_is_scored_offered_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("outside_pooling", ROOT, "ROOT", POOLINGS, tmp_path, monkeypatch)
    monkeypatch.setattr(verifying, "reload", reload_here)
    model = tiny_model("llama")
    readouts = [
        f"plain/{name}/raw/{sink}/none" for name in ("mean", "root") for sink in ("keep", "drop")
    ]
    given = {"store": tmp_path / "store", "scoring_workers": 0, "progress": False}
    run = layerscope.evaluate(
        model, "Pairs", data_dir=write_tasks(tmp_path / "data"), readouts=readouts, **given
    )
    score = run.scores.set_index(["pooling", "sink", "layer"])["score"]
    for sink in ("keep", "drop"):  # the same directions as the mean's, and so the same cosines
        assert score["root", sink].to_numpy() == pytest.approx(
            score["mean", sink].to_numpy(), abs=1e-4
        )
    assert not np.allclose(score["root", "keep"], score["root", "drop"])

    done = export(model, 2, readout="plain/root/raw", out=tmp_path / "folder", max_length=64)
    export(model, 2, readout="plain/mean/raw", out=tmp_path / "mean", max_length=64)
    texts = ["A cat.", "A longer sentence about a cat."]
    root, mean = (
        st.SentenceTransformer(str(folder), device="cpu").encode(texts)
        for folder in (done.path, tmp_path / "mean")
    )
    lengths = [len(ids) for ids in model.tokenize(texts).ids]
    np.testing.assert_allclose(root, mean * np.sqrt(lengths)[:, None], rtol=1e-4, atol=1e-5)

    better = layerscope.improve(
        model, some_texts(), judge="none", templates=["one-word"], max_length=96, progress=False
    )
    assert better.table["readout"].str.startswith("plain/root/").any()


def test_a_pooling_without_a_name_elsewhere_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares = ROOT.replace('sentence_transformers="mean_sqrt_len_tokens",', "")
    install("outside_squares", squares, "ROOT", POOLINGS, tmp_path, monkeypatch)
    with pytest.raises(
        ExportError,
        match=r"'root' is not among the standard poolings.*readout='plain/mean/raw/keep/none'",
    ):
        export(tiny_model("llama"), 2, readout="plain/root/raw", out=tmp_path / "folder")
    better = layerscope.improve(
        tiny_model("llama"),
        some_texts(),
        judge="none",
        templates=["one-word"],
        max_length=96,
        progress=False,
    )
    assert not better.table["readout"].str.startswith("plain/root/").any()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "a/b", "position": "last"}, "'a/b'"),
        ({"name": "sink", "position": "last"}, "'sink'"),
        ({"name": "no"}, "one of"),
    ],
)
def test_what_is_no_pooling_is_refused(given: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pooling(**given)


def test_the_documentation_lists_every_pooling() -> None:
    docs = Path(__file__).parents[2] / "docs"
    listed = ", ".join(
        f"`{p.name}`" + (f" ({p.summary})" if p.summary else "") for p in POOLINGS.all().values()
    )
    assert f"| pooling | {listed} | mean |" in (docs / "evaluate.md").read_text(encoding="utf-8")
    exported = ", ".join(f"`{p.name}`" for p in POOLINGS.all().values() if p.sentence_transformers)
    assert f"| {exported} | a Pooling module |" in (docs / "export.md").read_text(encoding="utf-8")
