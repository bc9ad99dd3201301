"""A sentence encoder whose blocks can be left out, replaced, or started from a stored state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerscope.errors import ModelError, NonFiniteStatesError
from layerscope.exporting.cutting import block_list_path, set_blocks
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.models import wrap
from layerscope.models.settings import quiet

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Variant:
    """A model made of some blocks of another: their numbers in the whole model, and the modules.

    A module is the whole model's own, or a copy of it with other weights.
    """

    blocks: tuple[int, ...]
    modules: tuple[nn.Module, ...]

    def replace(self, block: int, module: nn.Module) -> Variant:
        """Return a variant in which one block is another module."""
        pairs = zip(self.blocks, self.modules, strict=True)
        return Variant(self.blocks, tuple(module if k == block else old for k, old in pairs))

    def remove(self, block: int) -> Variant:
        """Return a variant without one block."""
        kept = [pair for pair in zip(self.blocks, self.modules, strict=True) if pair[0] != block]
        return Variant(tuple(k for k, _ in kept), tuple(module for _, module in kept))

    def after(self, block: int) -> Variant:
        """Return the part behind one block."""
        kept = [pair for pair in zip(self.blocks, self.modules, strict=True) if pair[0] > block]
        return Variant(tuple(k for k, _ in kept), tuple(module for _, module in kept))


@dataclass(frozen=True)
class Batch:
    """Tokens of some texts: `rows` are the texts' places, `mask` (texts, tokens) the real tokens."""

    rows: np.ndarray
    features: dict[str, Any]
    mask: Tensor

    @property
    def tokens(self) -> int:
        """Number of tokens, padding left out."""
        return int(self.mask.sum())


@dataclass(frozen=True)
class Start:
    """A state (texts, tokens, D) that a pass starts from: what block `block` gave."""

    block: int
    state: Tensor


class _Stored(nn.Module):
    """Stands in the place of a block and gives a stored state."""

    def __init__(self, block: nn.Module, state: Tensor, as_tuple: bool) -> None:
        super().__init__()
        self.__dict__.update(block=block, state=state, as_tuple=as_tuple)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["block"], name)  # such as Gemma's attention_type

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the stored state in the form in which the block returns its output."""
        return (self.state,) if self.as_tuple else self.state


class _LastBlockDone(Exception):
    """Ends a forward pass behind the block that was wanted."""


class Encoder:
    """A sentence-transformers pipeline, opened to run any of its blocks.

    The vectors are those that `SentenceTransformer(folder).encode` gives, its prompt included.
    """

    def __init__(self, pipeline: Any, folder: Path, max_length: int = 256) -> None:
        self.pipeline, self.folder = pipeline, folder
        limit = getattr(pipeline, "max_seq_length", None) or max_length
        self.max_length = min(max_length, limit)
        self.model = wrap(pipeline)
        path = block_list_path(self.model.module, self.model.anatomy.blocks)
        if path is None:
            raise ModelError(
                f"the blocks of {type(self.model.module).__name__} are not in one list of modules, "
                "so none can be left out."
            )
        self._parent, _, self._leaf = path.rpartition(".")
        name = getattr(pipeline, "default_prompt_name", None)
        self.prompt = pipeline.prompts.get(name) if name else None
        self._as_tuple = self._returns_tuple()

    @classmethod
    def open(
        cls, folder: Path, device: Any = None, dtype: Any = None, max_length: int = 256
    ) -> Encoder:
        """Load a folder of sentence-transformers."""
        with quiet():
            pipeline = load_folder(folder, device=device, dtype=dtype)
        return cls(pipeline.eval(), folder, max_length)

    @property
    def n_blocks(self) -> int:
        """Number of blocks of the whole model."""
        return self.model.n_blocks

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.device

    @property
    def whole(self) -> Variant:
        """The model as it is."""
        blocks = self.model.anatomy.blocks
        return Variant(tuple(range(len(blocks))), tuple(blocks))

    def variant(self, blocks: Sequence[int]) -> Variant:
        """Return the model with some of its blocks as they are."""
        return Variant(tuple(blocks), tuple(self.model.anatomy.blocks[k] for k in blocks))

    def removable(self) -> list[bool]:
        """Return for each block whether it can be left out.

        A first block of another structure (ModernBERT's has no norm, T5's holds the positions)
        cannot: the block behind it would be loaded as the first.
        """
        shapes = [
            {name: tuple(value.shape) for name, value in block.named_parameters()}
            for block in self.model.anatomy.blocks
        ]
        return [i > 0 or shapes[0] == shapes[-1] for i in range(len(shapes))]

    def batches(self, texts: Sequence[str]) -> list[Batch]:
        """Tokenize texts once and put those of similar length together."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        lengths = self._lengths([texts[i] for i in order])
        batches, start = [], 0
        while start < len(order):
            end = start + 1
            while (
                end < len(order)
                and max(lengths[start : end + 1]) * (end + 1 - start) <= BATCH_TOKENS
            ):
                end += 1
            batches.append(self._batch([order[i] for i in range(start, end)], texts))
            start = end
        return batches

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        ids = self.model.tokenize(texts, self.max_length).ids
        return [len(row) for row in ids]

    def _batch(self, rows: Sequence[int], texts: Sequence[str]) -> Batch:
        before = self.pipeline.max_seq_length
        self.pipeline.max_seq_length = self.max_length
        try:
            features = self.pipeline.preprocess([texts[i] for i in rows], prompt=self.prompt)
        finally:
            self.pipeline.max_seq_length = before
        moved = {
            name: value.to(self.device) if isinstance(value, Tensor) else value
            for name, value in features.items()
        }
        return Batch(np.asarray(rows), moved, moved["attention_mask"].bool())

    @torch.inference_mode()
    def vectors(self, variant: Variant, batch: Batch, start: Start | None = None) -> Tensor:
        """Return the pooled vectors (texts, D) of a variant, or of its blocks behind a state."""
        with self._running(variant, start):
            pooled: Tensor = self.pipeline(dict(batch.features))["sentence_embedding"]
        return pooled.float()

    def encode(self, variant: Variant, batches: Sequence[Batch]) -> np.ndarray:
        """Return the vectors (texts, D) of a variant in the order of the texts, of length 1."""
        rows = np.concatenate([batch.rows for batch in batches])
        vectors = torch.cat([self.vectors(variant, batch) for batch in batches]).cpu()
        if not bool(vectors.isfinite().all()):
            raise NonFiniteStatesError(
                f"the vectors of {self.folder.name} with blocks {list(variant.blocks)} are not finite."
            )
        out = np.empty(tuple(vectors.shape), dtype=np.float32)
        out[rows] = torch.nn.functional.normalize(vectors, dim=-1).numpy()
        return out

    @torch.inference_mode()
    def run(
        self,
        variant: Variant,
        batch: Batch,
        start: Start | None = None,
        hooks: Sequence[Callable[[], Any]] = (),
    ) -> Tensor:
        """Run a variant up to its last block and return that block's output (texts, tokens, D).

        `hooks` register what has to be read on the way, and return the handles to remove.
        """
        outputs: list[Tensor] = []

        def stop(_module: nn.Module, _args: Any, output: Any) -> None:
            outputs.append(output[0] if isinstance(output, tuple) else output)
            raise _LastBlockDone

        with ExitStack() as stack:
            for hook in hooks:
                stack.callback(hook().remove)
            # registered last, so that the other hooks on this block have read its output
            stack.callback(variant.modules[-1].register_forward_hook(stop).remove)
            stack.enter_context(self._running(variant, start))
            try:
                self.pipeline(dict(batch.features))
            except _LastBlockDone:
                return outputs[0]
        raise ModelError(f"block {variant.blocks[-1]} was not reached in a pass.")

    @contextmanager
    def _running(self, variant: Variant, start: Start | None) -> Iterator[None]:
        """Make the model consist of a variant's blocks for the time of a pass."""
        module = self.model.module
        parent = module.get_submodule(self._parent) if self._parent else module
        before, config = getattr(parent, self._leaf), module.config
        numbers, modules = list(variant.blocks), list(variant.modules)
        if start is not None:
            stored = _Stored(self.model.anatomy.blocks[start.block], start.state, self._as_tuple)
            numbers, modules = [start.block, *numbers], [stored, *modules]
        saved = set_blocks(config, numbers, self.n_blocks)
        setattr(parent, self._leaf, nn.ModuleList(modules))
        try:
            yield
        finally:
            setattr(parent, self._leaf, before)
            for name, value in saved.items():
                setattr(config, name, value)

    def _returns_tuple(self) -> bool:
        seen: list[bool] = []
        block = self.model.anatomy.blocks[0]
        handle = block.register_forward_hook(
            lambda _m, _a, out: seen.append(isinstance(out, tuple))
        )
        try:
            with torch.inference_mode():
                self.pipeline(dict(self._batch([0], ["a text"]).features))
        finally:
            handle.remove()
        return seen[0]


def copy_sharing(module: nn.Module, own: Sequence[Tensor]) -> nn.Module:
    """Copy a module; all its tensors but `own` are shared with the original."""
    tensors = {id(one): one for one in (*module.parameters(), *module.buffers())}
    for tensor in own:
        tensors.pop(id(tensor), None)
    return copy.deepcopy(module, dict(tensors))
