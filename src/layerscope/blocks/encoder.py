"""A sentence encoder whose blocks can be left out, replaced, or started from a stored state."""

from __future__ import annotations

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
from layerscope.exporting.pipeline import load_folder
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
        place = self.blocks.index(block)
        return Variant(self.blocks, (*self.modules[:place], module, *self.modules[place + 1 :]))

    def remove(self, block: int) -> Variant:
        """Return a variant without one block."""
        place = self.blocks.index(block)
        return Variant(
            self.blocks[:place] + self.blocks[place + 1 :],
            self.modules[:place] + self.modules[place + 1 :],
        )


@dataclass(frozen=True)
class Batch:
    """Tokens of some texts: `rows` are the texts' places, `mask` (texts, tokens) real tokens."""

    rows: np.ndarray
    features: dict[str, Any]
    mask: Tensor

    @property
    def tokens(self) -> int:
        """Number of tokens, padding left out."""
        return int(self.mask.sum())


@dataclass(frozen=True)
class Start:
    """A state (texts, tokens, D) that a pass starts from: the output of block `block`."""

    block: int
    state: Tensor


class _Stored(nn.Module):
    """A module in the place of a block that returns a stored state."""

    def __init__(self, block: nn.Module, state: Tensor, as_tuple: bool) -> None:
        super().__init__()
        self.__dict__.update(block=block, state=state, as_tuple=as_tuple)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["block"], name)  # such as Gemma's attention_type

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the stored state in the form in which the block returns its output."""
        return (self.state,) if self.as_tuple else self.state


class _LastBlockDone(Exception):
    """The last block that was wanted has run: the forward pass ends."""


class Encoder:
    """A sentence-transformers pipeline, opened to run any of its blocks.

    The vectors are those that `SentenceTransformer(folder).encode` gives, its prompt included.
    """

    def __init__(self, pipeline: Any, folder: Path, max_length: int = 256) -> None:
        self.pipeline = pipeline
        self.folder = folder
        self.model = wrap(pipeline)
        self.max_length = min(max_length, pipeline.max_seq_length or max_length)
        pipeline.max_seq_length = self.max_length
        path = block_list_path(self.model.module, self.model.anatomy.blocks)
        if path is None:
            raise ModelError(
                f"the blocks of {type(self.model.module).__name__} are not in one list of modules, "
                "so none can be left out."
            )
        self._parent, _, self._leaf = path.rpartition(".")
        self.prompt = pipeline.prompts.get(pipeline.default_prompt_name)
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
        """The device that computes."""
        return self.model.device

    @property
    def whole(self) -> Variant:
        """The model as it is."""
        return self.variant(range(self.n_blocks))

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

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens that are read of each text."""
        return [len(row) for row in self.model.tokenize(texts, self.max_length).ids]

    def batches(self, texts: Sequence[str]) -> list[Batch]:
        """Tokenize texts once and put those of similar length together."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        counts = self.token_counts([texts[i] for i in order])
        batches = []
        rows: list[int] = []
        longest = 0
        for row, count in zip(order, counts, strict=True):
            if rows and max(longest, count) * (len(rows) + 1) > BATCH_TOKENS:
                batches.append(self._batch(rows, texts))
                rows = []
                longest = 0
            rows.append(row)
            longest = max(longest, count)
        return [*batches, self._batch(rows, texts)] if rows else batches

    def _batch(self, rows: Sequence[int], texts: Sequence[str]) -> Batch:
        features = self.pipeline.preprocess([texts[i] for i in rows], prompt=self.prompt)
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

    def encode(
        self,
        variant: Variant,
        batches: Sequence[Batch],
        starts: Sequence[Start | None] | None = None,
    ) -> np.ndarray:
        """Return the vectors (texts, D) of a variant in the order of the texts, of length 1.

        With `starts`, a state for each batch, only the blocks behind it run.
        """
        pairs = zip(batches, starts or [None] * len(batches), strict=True)
        vectors = torch.cat([self.vectors(variant, *pair) for pair in pairs]).cpu()
        if not bool(vectors.isfinite().all()):
            raise NonFiniteStatesError(
                f"the vectors of {self.folder.name} with blocks {list(variant.blocks)} are not "
                "finite."
            )
        ordered = np.empty(tuple(vectors.shape), dtype=np.float32)
        rows = np.concatenate([batch.rows for batch in batches])
        ordered[rows] = torch.nn.functional.normalize(vectors, dim=-1).numpy()
        return ordered

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
        config = module.config
        parent = module.get_submodule(self._parent) if self._parent else module
        original = getattr(parent, self._leaf)
        pairs = list(zip(variant.blocks, variant.modules, strict=True))
        if start is not None:
            block = self.model.anatomy.blocks[start.block]
            stored = _Stored(block, start.state, self._as_tuple)
            pairs = [(start.block, stored), *(pair for pair in pairs if pair[0] > start.block)]
        settings = set_blocks(config, [number for number, _ in pairs], self.n_blocks)
        setattr(parent, self._leaf, nn.ModuleList([block for _, block in pairs]))
        try:
            yield
        finally:
            setattr(parent, self._leaf, original)
            for name, value in settings.items():
                setattr(config, name, value)

    def _returns_tuple(self) -> bool:
        """Return whether blocks return a tuple."""
        outputs: list[Any] = []
        block = self.model.anatomy.blocks[0]
        handle = block.register_forward_hook(lambda _module, _args, out: outputs.append(out))
        try:
            self.vectors(self.whole, self._batch([0], ["a text"]))
        finally:
            handle.remove()
        return isinstance(outputs[0], tuple)
