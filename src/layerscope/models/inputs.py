"""The input of a model: the rows (token ids, …) of items by number, and of their views."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from layerscope.capture.batches import Batch
from layerscope.data.items import Items
from layerscope.data.views import ViewPool, ViewSettings, make_views, token_ids
from layerscope.errors import DataError, LayerscopeError, ModelError

Row = Sequence[int] | np.ndarray
"""One item as its model takes it: the token ids of a text."""

_CHUNK = 2000  # texts tokenized at once
_MAX_TOKENS = 2_000_000  # 8 MB: more are made again when they are needed
_MAX_TOKENS_GPU = 16 * _MAX_TOKENS  # a GPU would wait for them, and its host has the memory
_MIN_VIEWS_IN_POOL = 2000  # fewer are made before the processes are up
_SAMPLE_TOKENS = 64
_COMPARED = 4  # texts whose tokens are compared before workers tokenize
_CHARACTERS_PER_TOKEN, _MIN_CHARACTERS = 200, 20_000


def cut_by_characters(texts: Sequence[str], longest: int | None) -> tuple[list[str], list[int]]:
    """Return texts without their parts far beyond the first `longest` tokens, and the numbers of
    those that were shortened.

    Tokenizing a book takes minutes where sixteen tokens of it are read. A shortened text that turns
    out to have no more than `longest` tokens has to be tokenized whole.
    """
    if longest is None:
        return list(texts), []
    limit = longest * _CHARACTERS_PER_TOKEN + _MIN_CHARACTERS
    numbers = [i for i, text in enumerate(texts) if len(text) > limit]
    return [text[:limit] for text in texts], numbers


@contextmanager
def tokenizer_explained(name: str) -> Iterator[None]:
    """Turn the error of a tokenizer whose files do not fit together into a clear one. It fails on
    some texts only, such as those of new words."""
    try:
        yield
    except LayerscopeError:
        raise
    except BaseException as error:  # a panic of the tokenizers library is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
        raise ModelError(
            f"the tokenizer of {name} cannot tokenize a text ({reason}). Its files are incomplete "
            "or damaged: fetch them again."
        ) from error


@dataclass(frozen=True)
class ReadSettings:
    """Settings for reading items: the most tokens of a text, and the settings of other kinds of
    items (`ItemKind.settings`)."""

    max_length: int | None = None
    own: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Items by number: how many tokens are read of each, which were cut, and their rows if those
    take little memory."""

    numbers: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    rows: Sequence[Row] | None
    size: int


class ItemReader(AbstractContextManager["ItemReader"]):
    """Reads items for one model. Use it as a context, or `close` it: it may have processes of its
    own.

    A kind of items needs `survey` and `read`, and `read_views` for metrics that compare views.
    """

    most_kept: int = 0
    """Rows of at most this size in all (`Part.size`) are kept; others are read again when they are
    needed."""

    def __init__(self, model: Any, items: Items, max_length: int | None = None) -> None:
        self.model: Any = model  # a LoadedModel, whose module imports this one
        self.items: Any = items
        self.max_length = max_length

    @abstractmethod
    def survey(self, numbers: np.ndarray) -> Part:
        """Count the tokens of items."""

    @abstractmethod
    def read(self, numbers: Sequence[int] | np.ndarray) -> Sequence[Row]:
        """Return the rows of items."""

    def read_views(
        self, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row], views: ViewSettings
    ) -> Sequence[Row]:
        """Return the rows of the items' views, item by item; `rows` are those of the items
        themselves."""
        raise DataError(
            f"views of {self.items.kind} cannot be made: choose metrics that compare no views "
            "(metrics=)."
        )

    def start_views(self, views: ViewSettings, count: int | None = None) -> None:
        """Start processes that make views of `count` items (None: of many), where that pays."""

    def stop_views(self) -> None:
        """End the processes that make views."""

    def sample(self, number: int) -> Batch:
        """Return one item as a batch, for checks on a model."""
        batch: Batch = self.model.make_batch(self.read([number]))
        return batch

    def conventions(self, settings: ViewSettings) -> dict[str, Any]:
        """Return what a manifest says of how items are read."""
        return {}

    @property
    def has_class_token(self) -> bool:
        """True if the first token stands for the whole item."""
        return False

    def facts(self, survey: Part) -> dict[str, Any]:
        """Return facts about items that have been surveyed."""
        return {"max_length": self.max_length, "truncated": int(survey.truncated.sum())}

    def warnings(self) -> list[str]:
        """Return what a reader of the results must know about how the items are read."""
        return []

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes of the reader."""
        self.stop_views()


class TextReader(ItemReader):
    """Texts as token ids, cut to `max_length` tokens."""

    def __init__(self, model: Any, items: Items, settings: ReadSettings) -> None:
        limits = [n for n in (settings.max_length, model.max_length) if n is not None]
        super().__init__(model, items, min(limits) if limits else None)
        self.most_kept = _MAX_TOKENS_GPU if model.device.type == "cuda" else _MAX_TOKENS
        self.texts: Sequence[str] = self.items.texts
        self._requested_length = settings.max_length
        self._pool: ViewPool | None = None
        self._workers_tokenize: bool | None = None  # None: not tried yet

    def _texts(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        return [self.texts[int(i)] for i in numbers]

    def survey(self, numbers: np.ndarray) -> Part:
        lengths: list[int] = []
        truncated: list[bool] = []
        rows: list[Row] = []
        size = 0
        for start in range(0, len(numbers), _CHUNK):
            texts = self._texts(numbers[start : start + _CHUNK])
            tokens = self.model.tokenize(texts, self.max_length)
            lengths += [len(ids) for ids in tokens.ids]
            truncated += tokens.truncated
            size = sum(lengths)
            if size <= self.most_kept:
                rows += [np.array(ids, np.int32) for ids in tokens.ids]
        return Part(
            numbers,
            np.array(lengths, dtype=np.int64),
            np.array(truncated, dtype=bool),
            rows if size <= self.most_kept else None,
            size,
        )

    def read(self, numbers: Sequence[int] | np.ndarray) -> Sequence[Row]:
        rows: Sequence[Row] = self.model.tokenize(self._texts(numbers), self.max_length).ids
        return rows

    def start_views(self, views: ViewSettings, count: int | None = None) -> None:
        """Start processes that make views, unless those of so few texts would be made before the
        processes are up."""
        are_many = count is None or views.count * count >= _MIN_VIEWS_IN_POOL
        if self._pool is None and views.count and are_many:
            self._pool = ViewPool(views)

    def stop_views(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
            self._workers_tokenize = None

    def read_views(
        self, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row], views: ViewSettings
    ) -> Sequence[Row]:
        """Return token ids of the views. A view in which the tokenizer finds no token is replaced
        by its text."""
        texts, _ = cut_by_characters(self._texts(numbers), self.max_length)
        ids: list[Row]
        if self._pool is not None and self._has_tokenizer(self._pool, texts):
            with tokenizer_explained(self.model.name):
                ids = list(self._pool.make_ids(texts))
        else:
            if self._pool is None:
                views_of_texts = make_views(texts, views.count, views.seed, views.augmenter)
            else:
                views_of_texts = self._pool.make(texts)
            flat = [view for several in views_of_texts for view in several]
            ids = list(self.model.tokenize(flat, self.max_length).ids)
        return [row if len(row) else rows[i // views.count] for i, row in enumerate(ids)]

    def _has_tokenizer(self, pool: ViewPool, texts: list[str]) -> bool:
        """Give the workers the model's tokenizer, once, if it alone gives the model's tokens.

        That takes a while, so it is done here, in the thread that reads views ahead.
        """
        if self._workers_tokenize is None:
            self._workers_tokenize = False
            backend = getattr(self.model.tokenizer, "backend_tokenizer", None)
            if backend is not None:
                serialized = backend.to_str()
                few = texts[:_COMPARED]
                with tokenizer_explained(self.model.name):
                    rows = token_ids(serialized, few, self.max_length)
                if rows == self.model.tokenize(few, self.max_length).ids:
                    pool.set_tokenizer(serialized, self.max_length)
                    self._workers_tokenize = True
        return self._workers_tokenize

    def sample(self, number: int) -> Batch:
        length = min(self.max_length or _SAMPLE_TOKENS, _SAMPLE_TOKENS)
        batch: Batch = self.model.make_batch(self.model.tokenize(self._texts([number]), length).ids)
        return batch

    @property
    def has_class_token(self) -> bool:
        return bool(self.model.has_class_token)

    def facts(self, survey: Part) -> dict[str, Any]:
        return {**super().facts(survey), "tokens": "all, special tokens included"}

    def warnings(self) -> list[str]:
        limit = self.model.max_length
        if self._requested_length is None or limit is None or self._requested_length <= limit:
            return []
        return [
            f"max_length {self._requested_length} is more than the model's context: {limit} was "
            "used."
        ]
