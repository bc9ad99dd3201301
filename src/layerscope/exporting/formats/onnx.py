"""ONNX: the whole pipeline, pooling and centering included, as one graph, checked against torch.

Layout: `onnx/model.onnx`, inputs `input_ids` and `attention_mask`
(batch × sequence, int64), outputs `sentence_embedding` (finished) and `token_embeddings`. What the
graph does not need, such as a block of zeros, is not in it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
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

INPUTS, OUTPUTS = ["input_ids", "attention_mask"], ["sentence_embedding", "token_embeddings"]
TOLERANCE = 1e-5
_ONE_FILE = int(1.8 * 2**30)  # a graph with its weights in one file ends at 2 GB


class Pipeline(nn.Module):
    """Tokens to a finished vector: transformer and pooling as sentence-transformers runs them, then
    the head, then the length."""

    def __init__(self, model: Any, head: Head | None, unit: bool) -> None:
        super().__init__()
        self.transformer, self.pooling, self.unit = model[0], model[1], unit
        # a mean is subtracted, not multiplied with an identity: a quantized identity would not be
        # one
        parts = (None, None) if head is None else (head.mean, head.matrix)
        self.mean, self.matrix = (
            None
            if part is None
            else nn.Parameter(torch.tensor(part, dtype=torch.float32), requires_grad=False)
            for part in parts
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The finished vectors and the tokens' states."""
        given: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "modality": "text",
        }
        pooled = self.pooling(self.transformer(given))
        vector = pooled["sentence_embedding"]
        if self.mean is not None:
            vector = vector - self.mean
        if self.matrix is not None:
            vector = vector @ self.matrix
        if self.unit:
            vector = nn.functional.normalize(vector, dim=1)
        return vector, pooled["token_embeddings"]


def write_graph(draft: Draft) -> dict[str, Any]:
    """Write the graph, which must equal torch, and return what was measured of it."""
    from sentence_transformers import SentenceTransformer

    name = draft.model.name
    if draft.model.anatomy.family.startswith("mamba"):
        raise ExportError(
            f"{name}: Mamba goes through a text step by step, which no graph of fixed size holds. Leave out formats=onnx."
        )
    if draft.model.identity["dtype"] != "float32":
        raise ExportError(
            "an ONNX graph is made from float32 weights: leave out dtype=. For a small graph, quantize it afterwards (docs/export.md)."
        )
    with _silence():
        model = SentenceTransformer(
            str(draft.folder), device="cpu", local_files_only=True, trust_remote_code=False
        ).eval()
    pipeline = Pipeline(model, draft.head, draft.unit).eval()
    batches = _batches(draft)
    file = draft.folder / "onnx" / "model.onnx"
    file.parent.mkdir()
    _trace(pipeline, batches[0], file)

    def torch_run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return pipeline(torch.tensor(ids), torch.tensor(mask))[0].numpy()

    wanted = np.concatenate([torch_run(*batch) for batch in batches])
    facts = _facts(file, batches, wanted)
    if not facts["cosine_distance"] < TOLERANCE:
        raise ExportError(
            f"the ONNX graph does not give what torch gives: cosine distance {facts['cosine_distance']:.1e}."
        )
    return facts


@contextmanager
def _silence() -> Iterator[None]:
    """torch, onnxruntime and sentence-transformers tell much about every step."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with quiet(bars=True):
            yield
    finally:
        logging.disable(level)


def _batches(draft: Draft) -> list[tuple[np.ndarray, np.ndarray]]:
    """Padded batches of different shapes; the first, with padding, is what the graph is traced
    on."""
    rows = [row for row in draft.framed.ids(draft.texts) if row]
    groups = [rows[i : i + 8] for i in range(0, len(rows), 8)]
    if len(groups[-1]) > 1:
        groups.append([min(rows, key=len)])  # one text alone, without padding
    out = []
    for group in groups:
        width = max(len(row) for row in group)
        ids = np.full((len(group), width), draft.model.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(group):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        out.append((ids, mask))
    return out


def _trace(pipeline: Pipeline, example: tuple[np.ndarray, np.ndarray], file: Path) -> None:
    """By tracing, which is quick; by torch.export where that does not work or the weights are too
    large for one file."""
    given = tuple(torch.tensor(part) for part in example)
    size = sum(p.numel() * p.element_size() for p in pipeline.parameters())
    axes = {0: "batch", 1: "sequence"}
    named: dict[str, Any] = {"input_names": INPUTS, "output_names": OUTPUTS}
    with _silence(), torch.inference_mode():
        if size < _ONE_FILE:
            try:
                moving = {
                    **dict.fromkeys((*INPUTS, "token_embeddings"), axes),
                    "sentence_embedding": {0: "batch"},
                }
                torch.onnx.export(
                    pipeline,
                    given,
                    str(file),
                    dynamo=False,
                    opset_version=17,
                    dynamic_axes=moving,
                    **named,
                )
                return
            except Exception:  # an operation that tracing does not know
                file.unlink(missing_ok=True)
        try:
            shapes = {
                name: {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
                for name in INPUTS
            }
            wide = size >= _ONE_FILE
            torch.onnx.export(
                pipeline,
                given,
                str(file),
                dynamo=True,
                dynamic_shapes=shapes,
                external_data=wide,
                **named,
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ExportError(
                f"torch could not turn this model into an ONNX graph: {reason}. Leave out formats=onnx."
            ) from error


def _facts(
    file: Path,
    batches: Sequence[tuple[np.ndarray, np.ndarray]],
    wanted: np.ndarray,
) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]

    vectors = np.concatenate([run(*batch) for batch in batches])
    distances = cosine_distances(wanted, vectors)
    return {
        "file": f"onnx/{file.name}",
        "bytes": sum(part.stat().st_size for part in file.parent.glob(f"{file.stem}.*")),
        "cosine_distance": float(np.nanmax(distances)),
        "mean_cosine_distance": float(np.nanmean(distances)),
    }


class OnnxFormat(ExportFormat):
    """`onnx/model.onnx`."""

    name: ClassVar[str] = "onnx"
    summary: ClassVar[str] = "an ONNX graph, pooling included"

    def check(self) -> None:
        """The libraries must be installed."""
        require("onnx")

    def write(self, draft: Draft) -> dict[str, Any]:
        """The graph, and what was measured of it."""
        return write_graph(draft)

    def card(self, facts: Any) -> str:
        """A section with the graph's inputs, outputs, size and distance to torch."""
        lines = [
            "## ONNX",
            "",
            "Inputs `input_ids` and `attention_mask`; outputs `sentence_embedding` (pooled, finished) and `token_embeddings`.",
            "",
            *self.lines(facts),
        ]
        return "\n".join(lines)

    def lines(self, facts: Any) -> list[str]:
        """One line about the graph."""
        return [
            f"{facts['file']}: {describe_size(facts['bytes'])} · cosine distance to torch ≤ {facts['cosine_distance']:.1e} "
            f"(mean {facts['mean_cosine_distance']:.1e})"
        ]


FORMAT = OnnxFormat()
