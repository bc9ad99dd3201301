"""Formats to write beside the sentence-transformers folder. Other packages add theirs with entry
points of the group `layerscope.formats`.

`onnx`: the whole pipeline, pooling and centering included, as one graph that equals torch. Layout:
`onnx/model.onnx`, inputs `input_ids` and `attention_mask` (batch × sequence, int64), outputs
`sentence_embedding` (finished) and `token_embeddings`. Whatever the graph does not need, such as a
block of zeros, is not in it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.core.heads import Head
from layerscope.core.options import describe_size
from layerscope.core.plugins import Registry
from layerscope.core.readout import Readout
from layerscope.errors import ExportError, one_line
from layerscope.exporting.draft import INPUTS, Draft
from layerscope.exporting.verifying import cosine_distances
from layerscope.extras import require
from layerscope.models import LoadedModel
from layerscope.models.settings import quiet

__all__ = ["FORMATS", "Draft", "ExportFormat"]

OUTPUTS = ["sentence_embedding", "token_embeddings"]
_TOLERANCE = 1e-5
_BATCH = 8


class ExportFormat(ABC):
    """A way to write a cut model.

    `write` adds files to the draft's folder, which already loads with sentence-transformers. They
    go into a subfolder with the format's name.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""

    def check(self) -> None:
        """Raise, before any work, if a library is missing."""
        return

    def check_choice(self, model: LoadedModel, layer: int, readout: Readout) -> None:
        """Raise, before anything is written, for a choice that this format cannot hold."""
        return

    @abstractmethod
    def write(self, draft: Draft) -> Any:
        """Write the files. The returned facts go into layerscope.json and to `card` and `lines`."""

    def card(self, facts: Any) -> str:
        """Return a section of the model card in Markdown, or nothing."""
        return ""

    def lines(self, facts: Any) -> list[str]:
        """Return lines for the terminal."""
        return []


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
            f"{facts['cosine_distance']:.1e}"
        ]


FORMATS: Registry[ExportFormat] = Registry(
    "export format",
    "layerscope.formats",
    name=lambda chosen: chosen.name,
    check=lambda thing: isinstance(thing, ExportFormat),
)
FORMATS.add(OnnxFormat())


def parse_formats(names: Sequence[str]) -> tuple[ExportFormat, ...]:
    """Return formats by their names, each checked for its libraries."""
    formats = tuple(FORMATS.get(name) for name in dict.fromkeys(names))
    for chosen in formats:
        chosen.check()
    return formats


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

    if draft.model.anatomy.family.startswith("mamba"):
        raise ExportError(
            f"{draft.model.name}: Mamba goes through a text step by step, which no graph of fixed "
            "size holds. Leave out formats=onnx."
        )
    if draft.model.identity["dtype"] != "float32":
        raise ExportError(
            "an ONNX graph is made from float32 weights: leave out dtype=. For a small graph, "
            "quantize it afterwards (docs/export.md)."
        )
    file = draft.folder / "onnx" / "model.onnx"
    file.parent.mkdir()
    batches = _batches(draft)
    with _silence(), torch.inference_mode():
        model = SentenceTransformer(
            str(draft.folder), device="cpu", local_files_only=True, trust_remote_code=False
        )
        pipeline = Pipeline(model, draft.head, draft.unit).eval()
        _trace(pipeline, batches[0], file)
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
    if not distance < _TOLERANCE:
        raise ExportError(
            f"the ONNX graph does not give what torch gives: cosine distance {distance:.1e}."
        )
    return {
        "file": f"onnx/{file.name}",
        "bytes": sum(piece.stat().st_size for piece in file.parent.iterdir()),
        "cosine_distance": distance,
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


def _trace(pipeline: Pipeline, example: tuple[Tensor, Tensor], file: Path) -> None:
    axes = {0: "batch", 1: "sequence"}
    all_axes = dict.fromkeys([*INPUTS, *OUTPUTS], axes) | {OUTPUTS[0]: {0: "batch"}}
    try:
        torch.onnx.export(
            pipeline,
            example,
            str(file),
            dynamo=False,
            opset_version=17,
            input_names=INPUTS,
            output_names=OUTPUTS,
            dynamic_axes=all_axes,
        )
    except Exception as error:  # an operation that tracing does not know
        raise ExportError(
            "torch could not turn this model into an ONNX graph: "
            f"{one_line(str(error))[:200]}. Leave out formats=onnx."
        ) from error
