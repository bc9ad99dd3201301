"""ONNX: the whole pipeline, pooling and centering included, as one graph, checked against torch.

Layout: `onnx/model.onnx`, inputs `input_ids` and `attention_mask` (batch × sequence, int64),
outputs `sentence_embedding` (finished) and `token_embeddings`. Whatever the graph does not need,
such as a block of zeros, is not in it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.core.formatting import describe_size
from layerscope.core.heads import Head
from layerscope.errors import ExportError
from layerscope.exporting.formats import Draft, ExportFormat
from layerscope.exporting.verifying import cosine_distances
from layerscope.extras import require
from layerscope.models.settings import quiet

INPUTS = ["input_ids", "attention_mask"]
OUTPUTS = ["sentence_embedding", "token_embeddings"]
TOLERANCE = 1e-5
_ONE_FILE = int(1.8 * 2**30)  # a graph with its weights in one file ends at 2 GB
_BATCH = 8


class Pipeline(nn.Module):
    """Tokens to a finished vector: transformer and pooling as sentence-transformers runs them, then
    the head, then the length."""

    def __init__(self, model: Any, head: Head | None, unit: bool) -> None:
        super().__init__()
        self.transformer = model[0]
        self.pooling = model[1]
        self.unit = unit
        # A mean is subtracted, not multiplied with an identity: a quantized identity is not exact.
        self.mean = None if head is None else _constant(head.mean)
        self.matrix = None if head is None or head.matrix is None else _constant(head.matrix)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the finished vectors and the tokens' states."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "modality": "text"}
        pooled = self.pooling(self.transformer(inputs))
        vector = pooled["sentence_embedding"]
        if self.mean is not None:
            vector = vector - self.mean
        if self.matrix is not None:
            vector = vector @ self.matrix
        if self.unit:
            vector = nn.functional.normalize(vector, dim=1)
        return vector, pooled["token_embeddings"]


def _constant(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float32), requires_grad=False)


def write_graph(draft: Draft) -> dict[str, Any]:
    """Write the graph, which must equal torch, and return what was measured of it."""
    import onnxruntime
    from sentence_transformers import SentenceTransformer

    name = draft.model.name
    if draft.model.anatomy.family.startswith("mamba"):
        raise ExportError(
            f"{name}: Mamba goes through a text step by step, which no graph of fixed size holds. "
            "Leave out formats=onnx."
        )
    if draft.model.identity["dtype"] != "float32":
        raise ExportError(
            "an ONNX graph is made from float32 weights: leave out dtype=. For a small graph, "
            "quantize it afterwards (docs/export.md)."
        )
    with _silence():
        model = SentenceTransformer(
            str(draft.folder), device="cpu", local_files_only=True, trust_remote_code=False
        )
    pipeline = Pipeline(model, draft.head, draft.unit).eval()
    batches = _batches(draft)
    file = draft.folder / "onnx" / "model.onnx"
    file.parent.mkdir()
    with _silence(), torch.inference_mode():
        _write(pipeline, batches[0], file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    distances = []
    for batch in batches:
        with torch.inference_mode():
            expected = pipeline(*batch)[0].numpy()
        arrays = [tensor.numpy() for tensor in batch]
        vectors = session.run(OUTPUTS[:1], dict(zip(INPUTS, arrays, strict=True)))[0]
        distances.append(cosine_distances(expected, vectors))
    distance = float(np.nanmax(np.concatenate(distances)))
    if not distance < TOLERANCE:
        raise ExportError(
            f"the ONNX graph does not give what torch gives: cosine distance {distance:.1e}."
        )
    return {
        "file": f"onnx/{file.name}",
        "bytes": sum(piece.stat().st_size for piece in file.parent.glob(f"{file.stem}.*")),
        "cosine_distance": distance,
        "mean_cosine_distance": float(np.nanmean(np.concatenate(distances))),
    }


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the messages of torch, onnxruntime and sentence-transformers off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet(bars=True):
            yield
    finally:
        logging.disable(level)


def _batches(draft: Draft) -> list[tuple[Tensor, Tensor]]:
    """Return padded batches of ids and masks, of different shapes.

    The first, with padding, is the one that the graph is traced on.
    """
    rows = [row for row in draft.framed.ids(draft.texts) if row]
    groups = [rows[i : i + _BATCH] for i in range(0, len(rows), _BATCH)]
    groups.append([min(rows, key=len)])  # one text alone, without padding
    batches = []
    for group in groups:
        width = max(len(row) for row in group)
        ids = [row + [draft.model.pad_id] * (width - len(row)) for row in group]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in group]
        batches.append((torch.tensor(ids), torch.tensor(mask)))
    return batches


def _write(pipeline: Pipeline, example: tuple[Tensor, Tensor], file: Path) -> None:
    """Trace the graph, which is quick; use torch.export where tracing does not work or the weights
    are too large for one file."""
    size = sum(p.numel() * p.element_size() for p in pipeline.parameters())
    names = {"input_names": INPUTS, "output_names": OUTPUTS}
    if size < _ONE_FILE:
        axes = {0: "batch", 1: "sequence"}
        all_axes = dict.fromkeys([*INPUTS, "token_embeddings"], axes)
        all_axes["sentence_embedding"] = {0: "batch"}
        try:
            torch.onnx.export(
                pipeline,
                example,
                str(file),
                dynamo=False,
                opset_version=17,
                dynamic_axes=all_axes,
                **names,
            )
            return
        except Exception:  # an operation that tracing does not know
            file.unlink(missing_ok=True)
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    try:
        torch.onnx.export(
            pipeline,
            example,
            str(file),
            dynamo=True,
            dynamic_shapes=dict.fromkeys(INPUTS, dimensions),
            external_data=size >= _ONE_FILE,
            **names,
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ExportError(
            f"torch could not turn this model into an ONNX graph: {reason}. Leave out formats=onnx."
        ) from error


class OnnxFormat(ExportFormat):
    """`onnx/model.onnx`."""

    name: ClassVar[str] = "onnx"
    summary: ClassVar[str] = "an ONNX graph, pooling included"

    def check(self) -> None:
        """Raise if the libraries are missing."""
        require("onnx")

    def write(self, draft: Draft) -> dict[str, Any]:
        """Write the graph, and return what was measured of it."""
        return write_graph(draft)

    def card(self, facts: Any) -> str:
        """Return a section with the graph's inputs, outputs, size and distance to torch."""
        return (
            "## ONNX\n\nInputs `input_ids` and `attention_mask`; outputs `sentence_embedding` "
            f"(pooled, finished) and `token_embeddings`.\n\n{self.lines(facts)[0]}"
        )

    def lines(self, facts: Any) -> list[str]:
        """Return one line about the graph."""
        return [
            f"{facts['file']}: {describe_size(facts['bytes'])} · cosine distance to torch ≤ "
            f"{facts['cosine_distance']:.1e} (mean {facts['mean_cosine_distance']:.1e})"
        ]


FORMAT = OnnxFormat()
