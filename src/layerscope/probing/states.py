"""The states that probes read: one vector an item, or the states of all its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from layerscope.cache import cache_dir
from layerscope.capture import Batch, FinalNorm, Site, fits_on_device
from layerscope.capture.reduce import check_finite
from layerscope.core.readout import Readout
from layerscope.data.corpus import Corpus
from layerscope.data.items import Items, get_kind
from layerscope.engines import Engine, ModelRecipe
from layerscope.forward import read_states
from layerscope.models import LoadedModel
from layerscope.models.inputs import ReadSettings
from layerscope.progress import Progress
from layerscope.vectors import VectorStore, text_key
from layerscope.vectors.encode import encode, find_missing, make_requests, read_readout

DEFAULT_STORE_SIZE = 4 * 2**30
_PART = 256  # items that are read at a time

Pooling = Literal["mean", "class"]


@dataclass(frozen=True)
class Runner:
    """The places where a model is run. With a `recipe`, workers of the engine encode texts."""

    engine: Engine
    recipe: ModelRecipe | None
    batch_size: int | None
    bar: Progress


class ItemStates(AbstractContextManager["ItemStates"]):
    """The states of items, given by their numbers, at some sites of a model.

    Texts are cut to `max_length` tokens. `lengths` counts the tokens that are read of each item.
    """

    def __init__(
        self,
        model: LoadedModel,
        items: Items,
        max_length: int,
        sites: Sequence[Site],
        final_norm: FinalNorm,
        runner: Runner,
    ) -> None:
        self.model = model
        self.items = items
        self.sites = sites
        self.final_norm = final_norm
        self.runner = runner
        settings = ReadSettings(max_length, get_kind(items.kind).defaults)
        self._reader = model.open_items(items, settings)
        survey = self._reader.survey(np.arange(len(items)))
        # An item without a token still needs a state: it is read as one padding token.
        self.lengths = np.maximum(survey.lengths, 1)
        self.facts = self._reader.facts(survey)
        self.has_class_token = self._reader.has_class_token

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    def vectors(self, numbers: np.ndarray, pooling: Pooling) -> np.ndarray:
        """Return one vector an item (sites, items, width), in float32."""
        if self.model.kind == "texts":
            return self._stored_vectors(numbers, pooling)
        return self._fresh_vectors(numbers, pooling)

    def tokens(self, numbers: np.ndarray) -> Tensor:
        """Return the states of all tokens (sites, items, tokens, width), in float32 on the model's
        device. Those beyond an item's own tokens are 0."""
        return self._read(numbers, int(self.lengths[numbers].max()))

    def _read(self, numbers: np.ndarray, count: int, of_class: bool = False) -> Tensor:
        """Return the states of `count` tokens: of those that are read, or of the class token."""
        shape = (len(self.sites), len(numbers), count, self.model.width)
        states = torch.zeros(shape, device=self.model.device)

        def keep(places: list[int], batch: Batch, site: int, raw: Tensor, state: Tensor) -> None:
            start = 0 if of_class else batch.skip
            tokens = state[:, start : start + count].to(states.device).float()
            if batch.mask is not None and not of_class:
                mask = batch.mask.to(states.device)
                tokens = torch.where(mask[..., None], tokens, 0)
            states[site, places, : tokens.shape[1]] = tokens

        rows = [row if len(row) else [self.model.pad_id] for row in self._reader.read(numbers)]
        read_states(self.model, rows, self.sites, self.final_norm, keep, self.runner.batch_size)
        check_finite(self.sites, states.flatten(2), self.model.dtype)
        return states

    def _stored_vectors(self, numbers: np.ndarray, pooling: Pooling) -> np.ndarray:
        """Return vectors from the vector store, in which missing ones are added first."""
        corpus = cast(Corpus, self.items)
        texts = [corpus.texts[i] for i in numbers]
        runner = self.runner
        readouts = [
            Readout(pooling="cls" if pooling == "class" else "mean", final_norm=self._norm_at(site))
            for site in self.sites
        ]
        max_length = self.facts["max_length"]
        requests = make_requests(readouts, self.sites, max_length, runner.batch_size)
        (missing,) = find_missing(
            self.model, VectorStore(cache_dir() / "embeddings"), requests, texts
        )
        runner.bar.begin(f"{self.model.name}|texts", len(missing.texts))
        encode(
            self.model,
            [missing],
            engine=runner.engine,
            recipe=runner.recipe,
            advance=runner.bar.advance,
        )
        keys = [text_key(text) for text in texts]
        vectors = [
            read_readout(missing.space, keys, readout, site.name)
            for readout, site in zip(readouts, self.sites, strict=True)
        ]
        return np.stack(vectors)

    def _norm_at(self, site: Site) -> str:
        if self.final_norm != "hf":
            return self.final_norm
        anatomy = self.model.anatomy
        is_last = site.layer == anatomy.n_blocks
        return "applied" if is_last and anatomy.hf_norms_last else "raw"

    def _fresh_vectors(self, numbers: np.ndarray, pooling: Pooling) -> np.ndarray:
        """Return vectors of items that the vector store does not hold."""
        self.runner.bar.begin(f"{self.model.name}|items", len(numbers))
        batches = []
        for batch in _batches(numbers):
            if pooling == "class":
                states = self._read(batch, 1, of_class=True)[:, :, 0]
            else:
                lengths = torch.from_numpy(self.lengths[batch])[:, None]
                total = self.tokens(batch).cpu().sum(2, dtype=torch.float64)
                states = (total / lengths).float()
            batches.append(states.cpu().numpy())
            self.runner.bar.advance(len(batch))
        return np.concatenate(batches, axis=1)


class TokenStates:
    """The states of all tokens of some items, kept in memory or computed at each reading.

    The items are numbered from 0 in the order given. `store_size` bounds the bytes that are kept.
    By default this is most of a GPU's free memory, and 4 GiB on other devices.
    """

    def __init__(self, states: ItemStates, numbers: np.ndarray, store_size: int | None) -> None:
        self._states = states
        self._numbers = numbers
        self._lengths = torch.from_numpy(states.lengths[numbers])
        self.device = states.model.device
        width = states.model.width
        shape = (len(states.sites), len(numbers), int(self._lengths.max()), width)
        fits = fits_on_device(self.device, math.prod(shape[:3]), width)
        limit = DEFAULT_STORE_SIZE if store_size is None else store_size
        is_kept = 4 * math.prod(shape) <= limit
        if store_size is None and self.device.type == "cuda":
            is_kept = fits
        self._kept: Tensor | None = None
        if is_kept:
            self._kept = torch.zeros(shape, device=self.device if fits else "cpu")
            self._fill(self._kept)

    @property
    def is_kept(self) -> bool:
        """Return True if the states are computed once."""
        return self._kept is not None

    def read(self, places: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Return states (sites, items, tokens, width) and the mask of tokens (items, tokens).

        The mask is None where all items have as many tokens.
        """
        lengths = self._lengths[torch.from_numpy(places)]
        if self._kept is None:
            states = self._states.tokens(self._numbers[places])
        elif (np.diff(places) == 1).all():  # neighbors are read where they lie
            states = self._kept[:, places[0] : places[-1] + 1].to(self.device)
        else:
            states = self._kept[:, torch.from_numpy(places)].to(self.device)
        mask = torch.arange(states.shape[2]) < lengths[:, None]
        return states, None if mask.all() else mask.to(self.device)

    def _fill(self, target: Tensor) -> None:
        bar = self._states.runner.bar
        bar.begin(f"{self._states.model.name}|items", len(self._numbers))
        for places in _batches(np.arange(len(self._numbers))):
            states = self._states.tokens(self._numbers[places])
            target[:, places[0] : places[-1] + 1, : states.shape[2]] = states.to(target.device)
            bar.advance(len(places))


def _batches(numbers: np.ndarray) -> list[np.ndarray]:
    return [numbers[start : start + _PART] for start in range(0, len(numbers), _PART)]
