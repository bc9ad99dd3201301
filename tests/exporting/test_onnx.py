"""ONNX graphs: equal to torch, pooling and centering included, and run with onnxruntime alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from layerscope.core.heads import Head
from layerscope.exporting import ExportError
from layerscope.exporting.formats.onnx import write_graph
from tests.exporting.support import TEXTS, draft_of, vectors_by_hand
from tests.tiny import tiny_model

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

MEAN = np.linspace(-1, 1, 32)


def run_graph(folder: Path, name: str, texts: list[str]) -> np.ndarray:
    """Only tokenizers, numpy and onnxruntime."""
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    core.enable_padding(pad_id=0)
    rows = core.encode_batch(texts)
    session = ort.InferenceSession(str(folder / "onnx" / name), providers=["CPUExecutionProvider"])
    given = {
        "input_ids": np.array([r.ids for r in rows]),
        "attention_mask": np.array([r.attention_mask for r in rows]),
    }
    return session.run(["sentence_embedding"], given)[0]


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
    draft = draft_of(
        model,
        2,
        readout,
        tmp_path,
        unit=unit,
        head=Head(MEAN, None, "some texts"),
        max_length=127,
    )
    facts = write_graph(draft)
    assert facts["file"] == "onnx/model.onnx"
    assert facts["cosine_distance"] < 1e-9
    wanted = vectors_by_hand(model, family, 2, readout, TEXTS)
    wanted = wanted - MEAN if readout.endswith("corpus") else wanted
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True) if unit else wanted
    np.testing.assert_allclose(
        run_graph(tmp_path, "model.onnx", TEXTS), wanted, rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(
        run_graph(tmp_path, "model.onnx", TEXTS[:1]), wanted[:1], rtol=1e-3, atol=1e-4
    )


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="step by step"):
        write_graph(draft_of(tiny_model("mamba"), 1, "plain/mean/raw", tmp_path))
