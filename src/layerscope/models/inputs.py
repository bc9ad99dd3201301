"""How a model reads items: the rows (token ids, …) it is run on, for items by number and
for their views."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import numpy as np

from layerscope.capture.batches import Batch
from layerscope.data.augment import ViewPool, ViewRequest, make_views, open_tokenizer, token_ids
from layerscope.data.items import Items
from layerscope.errors import DataError, LayerscopeError, ModelError

Row = Sequence[int] | np.ndarray
"""One item as its model takes it: the token ids of a text."""

_CHUNK = 2000  # texts tokenized at once
_MOST_TOKENS = 2_000_000  # 8 MB: more are made again when they are needed
_MOST_FOR_GPU = 16  # times as many: it would wait for that, and its host has the memory
_FEWEST_IN_POOL = 2000  # views: fewer are made before the processes are up
_TRIED = 4  # texts whose tokens are compared before a faster way is taken

_CHARACTERS_PER_TOKEN, _CHARACTERS_AT_LEAST = 200, 20_000


def cut_by_characters(texts: Sequence[str], longest: int | None) -> tuple[list[str], list[int]]:
    """Texts without what lies far beyond their first `longest` tokens, and the numbers of those
    that were shortened.

    Tokenizing a book takes minutes where sixteen tokens of it are read. A shortened text that turns
    out to have no more than `longest` tokens has to be tokenized whole.
    """
    if longest is None:
        return list(texts), []
    most = longest * _CHARACTERS_PER_TOKEN + _CHARACTERS_AT_LEAST
    return [text[:most] if len(text) > most else text for text in texts], [
        i for i, text in enumerate(texts) if len(text) > most
    ]


@dataclass(frozen=True)
class ReadSettings:
    """What is read of each item: at most so many tokens of a text, and what the settings of other
    kinds of items say (`ItemKind.settings`)."""

    max_length: int | None = None
    own: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewSettings:
    """Augmented views: how many of each item, from which seed, made by what."""

    count: int
    seed: int = 0
    augmenter: str = "builtin"


@dataclass(frozen=True)
class ViewInputs:
    """The rows of all views of some items, item by item, and how many were empty and replaced by
    their item."""

    rows: list[Row]
    empty: int = 0


@dataclass(frozen=True)
class Part:
    """Some items by number: how many tokens are read of each, which were cut, and their rows if
    those take little memory."""

    numbers: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    rows: Sequence[Row] | None
    size: int


class ItemReader(AbstractContextManager["ItemReader"]):
    """Reads items for one model. Use it as a context, or `close` it: it may have processes of its
    own.

    A kind of items of one's own needs `survey` and `read`; `read_views` where metrics that compare
    views are wanted.
    """

    most_kept: int = 0
    """Rows of at most this size in all (`Part.size`) are kept; others are read again when they are
    needed."""

    def __init__(self, model: Any, items: Items, max_length: int | None = None) -> None:
        self.model: Any = (
            model  # a LoadedModel, or one of its kinds, which open readers and so come after them
        )
        self.items: Any = items
        self.max_length = max_length

    @abstractmethod
    def survey(self, numbers: np.ndarray) -> Part:
        """Token counts of some items."""

    @abstractmethod
    def read(self, numbers: Sequence[int] | np.ndarray) -> Sequence[Row]:
        """The rows of some items."""

    def read_views(
        self, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row], views: ViewSettings
    ) -> ViewInputs:
        """The rows of the items' views; `rows` are those of the items themselves."""
        raise DataError(
            f"views of {self.items.kind} cannot be made: choose metrics that compare no views (metrics=)."
        )

    def start_views(self, views: ViewSettings, count: int | None = None) -> None:
        """Get ready to make views of `count` items (None: of many), in processes where that
        pays."""

    def stop_views(self) -> None:
        """End the processes that make views."""

    def sample(self, number: int) -> Batch:
        """One item as a batch, for checks on a model."""
        return self.model.make_batch(self.read([number]))

    def conventions(self, settings: ViewSettings) -> dict[str, Any]:
        """What a manifest says of how items are read."""
        return {}

    @property
    def has_class_token(self) -> bool:
        """Whether the first token stands for the whole item."""
        return False

    def facts(self, part: Part) -> dict[str, Any]:
        """What was found about items that have been surveyed."""
        return {"max_length": self.max_length, "truncated": int(part.truncated.sum())}

    def warnings(self) -> list[str]:
        """What a reader of the results must be told about reading the items."""
        return []

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of processes."""
        self.stop_views()


class TextReader(ItemReader):
    """Texts as token ids, cut to `max_length` tokens."""

    def __init__(self, model: Any, items: Items, settings: ReadSettings) -> None:
        limits = [n for n in (settings.max_length, model.max_length) if n is not None]
        super().__init__(model, items, min(limits) if limits else None)
        self.texts: Sequence[str] = self.items.texts
        self._asked = settings.max_length
        self._pool: ViewPool | None = None
        self._pool_is_set_up = False
        self._ending: Thread | None = None

    @property
    def most_kept(self) -> int:  # type: ignore[override]
        """Tokens."""
        return _MOST_TOKENS * (_MOST_FOR_GPU if self.model.device.type == "cuda" else 1)

    def survey(self, numbers: np.ndarray) -> Part:
        lengths = np.zeros(len(numbers), dtype=np.int64)
        truncated = np.zeros(len(numbers), dtype=bool)
        rows: list[Row] = []
        for start in range(0, len(numbers), _CHUNK):
            part = slice(start, start + _CHUNK)
            tokens = self.model.tokenize([self.texts[i] for i in numbers[part]], self.max_length)
            lengths[part] = [len(ids) for ids in tokens.ids]
            truncated[part] = tokens.truncated
            if lengths.sum() <= self.most_kept:
                rows += [np.array(ids, np.int32) for ids in tokens.ids]
        size = int(lengths.sum())
        return Part(numbers, lengths, truncated, rows if size <= self.most_kept else None, size)

    def read(self, numbers: Sequence[int] | np.ndarray) -> Sequence[Row]:
        return self.model.tokenize([self.texts[int(i)] for i in numbers], self.max_length).ids

    def start_views(self, views: ViewSettings, count: int | None = None) -> None:
        """Start processes that make views, unless those of so few texts would be made before the
        processes are up."""
        if (
            self._pool is None
            and views.count
            and (count is None or views.count * count >= _FEWEST_IN_POOL)
        ):
            self._pool = ViewPool(ViewRequest(views.count, views.seed, views.augmenter))

    def stop_views(self) -> None:
        """End the processes that make views, in the background."""
        pool, self._pool = self._pool, None
        self._pool_is_set_up = False
        if pool is not None:
            self._ending = Thread(target=pool.close, name="layerscope-end-workers")
            self._ending.start()

    def close(self) -> None:
        """Let go of processes, which have ended after this."""
        super().close()
        if self._ending is not None:
            self._ending.join()

    def read_views(
        self, numbers: Sequence[int] | np.ndarray, rows: Sequence[Row], views: ViewSettings
    ) -> ViewInputs:
        """Token ids of the views. A view in which the tokenizer finds no token is replaced by its
        text."""
        texts, pool = (
            cut_by_characters([self.texts[int(i)] for i in numbers], self.max_length)[0],
            self._pool,
        )
        if (
            pool is not None and not self._pool_is_set_up
        ):  # here, in the thread that reads views: it takes a while
            pool.set_tokenizer(
                serialized_tokenizer(self.model, texts[:_TRIED], self.max_length), self.max_length
            )
            self._pool_is_set_up = True
        ids: list[Row]
        if pool is not None and pool.request.tokenizer is not None:
            ids = list(pool.make_ids(texts))
        else:
            made = (
                make_views(texts, views.count, views.seed, views.augmenter)
                if pool is None
                else pool.make(texts)
            )
            ids = list(
                self.model.tokenize(
                    [view for several in made for view in several], self.max_length
                ).ids
            )
        empty = 0
        for i, row in enumerate(ids):
            if not len(row):
                ids[i] = rows[i // views.count]
                empty += 1
        return ViewInputs(ids, empty)

    def sample(self, number: int) -> Batch:
        ids = self.model.tokenize([self.texts[number]], min(self.max_length or 64, 64)).ids
        return self.model.make_batch(ids)

    @property
    def has_class_token(self) -> bool:
        return self.model.has_class_token

    def facts(self, part: Part) -> dict[str, Any]:
        return {**super().facts(part), "tokens": "all, special tokens included"}

    def warnings(self) -> list[str]:
        if (
            self._asked is None
            or self.model.max_length is None
            or self._asked <= self.model.max_length
        ):
            return []
        return [
            f"max_length {self._asked} is more than the model's context: {self.model.max_length} was used."
        ]


@contextmanager
def tokenizer_explained(name: str) -> Iterator[None]:
    """One clear error where a tokenizer's files do not fit together: it fails on some texts only,
    such as those of new words."""
    try:
        yield
    except LayerscopeError:
        raise
    except (
        BaseException
    ) as error:  # the core raises plain ones, and panics that are not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
        raise ModelError(
            f"the tokenizer of {name} cannot tokenize a text ({reason}). Its files are incomplete or damaged: fetch them again."
        ) from error


def serialized_tokenizer(model: Any, texts: list[str], longest: int | None) -> str | None:
    """A model's fast tokenizer for other processes; None where it has none, or where it alone gives
    other tokens."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    serialized = backend.to_str()
    here = model.tokenize(texts, longest).ids
    return serialized if token_ids(open_tokenizer(serialized, longest), texts) == here else None
