"""ONNX graphs: equal to torch, pooling and centering included, and run with onnxruntime alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from layerscope.core.heads import Head
from layerscope.exporting import ExportError
from layerscope.exporting.formats import write_graph
from tests.exporting.support import MEAN, TEXTS, draft_of, finish_by_hand, vectors_by_hand
from tests.tiny import tiny_model

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


def run_graph(folder: Path, texts: list[str]) -> np.ndarray:
    """Return vectors by tokenizers, numpy and onnxruntime alone."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0)
    rows = tokenizer.encode_batch(texts)
    file = folder / "onnx" / "model.onnx"
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    inputs = {
        "input_ids": np.array([row.ids for row in rows]),
        "attention_mask": np.array([row.attention_mask for row in rows]),
    }
    return session.run(["sentence_embedding"], inputs)[0]


@pytest.mark.parametrize(
    ("family", "readout", "unit"),
    [
        ("llama", "one-word/last/raw/keep/corpus", True),
        ("bert", "plain/mean/applied", False),
        ("gpt_neox", "plain/wmean/raw", False),
    ],
)
def test_graphs_equal_states_read_by_hand(
    family: str, readout: str, unit: bool, tmp_path: Path
) -> None:
    model = tiny_model(family)
    head = Head(MEAN, None, "some texts")
    draft = draft_of(model, 2, readout, tmp_path, unit=unit, head=head, max_length=127)
    facts = write_graph(draft)
    assert facts["file"] == "onnx/model.onnx"
    assert facts["cosine_distance"] < 1e-9
    vectors = vectors_by_hand(model, family, 2, readout, TEXTS)
    expected = finish_by_hand(vectors, readout, unit)
    np.testing.assert_allclose(run_graph(tmp_path, TEXTS), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(run_graph(tmp_path, TEXTS[:1]), expected[:1], rtol=1e-3, atol=1e-4)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="step by step"):
        write_graph(draft_of(tiny_model("mamba"), 1, "plain/mean/raw", tmp_path))
