"""Datasets from the Hugging Face hub, through the optional `datasets` package."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.data.readers import Records, choose_column
from layerscope.errors import DataError, DownloadError, LayerscopeError, MissingExtraError, OfflineError

_SPEC = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<config>[\w.-]+))?(?:/(?P<split>\w[\w.-]*))?", re.ASCII)
_BATCH = 1024


@dataclass(frozen=True)
class HubSpec:
    """A hub dataset: `org/name`, with `:config` and `/split` where they are not the usual ones."""

    repo: str
    config: str | None = None
    split: str = "train"

    def __str__(self) -> str:
        return f"{self.repo}{':' + self.config if self.config else ''}/{self.split}"


def parse_hub_spec(text: str) -> HubSpec | None:
    """The dataset that a text names, or None if it does not have the form of one.

    >>> parse_hub_spec("Salesforce/wikitext:wikitext-103-raw-v1/test")
    HubSpec(repo='Salesforce/wikitext', config='wikitext-103-raw-v1', split='test')
    """
    match = _SPEC.fullmatch(text)
    return HubSpec(match["repo"], match["config"], match["split"] or "train") if match else None


def load_hub_dataset(spec: HubSpec, *, offline: bool = False) -> Any:
    """The dataset, from the hub or from the hub's own cache."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"reading the hub dataset {spec}", "hub") from error
    with hub_offline(offline):
        try:
            return datasets.load_dataset(spec.repo, spec.config, split=spec.split)
        except Exception as error:  # of many kinds: the hub's, the network's and the builder's own
            raise _explained(spec, error, offline) from error


def _explained(spec: HubSpec, error: Exception, offline: bool) -> LayerscopeError:
    reason = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
    if offline or os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return OfflineError(
            f"hub dataset {spec} is not in the hub cache, and downloads are off ({reason}). "
            f"Run once with downloads on, or give a file of texts instead."
        )
    if isinstance(error, ValueError):  # an unknown config or split: the message lists the valid ones
        return DataError(f"hub dataset {spec} cannot be used: {reason}. Write org/name:config/split.")
    return DownloadError(
        f"hub dataset {spec} could not be loaded: {reason}. Check the name (org/name:config/split), the network "
        f"and, for a gated dataset, `hf auth login`; or give a file of texts instead."
    )


def read_hub(spec: HubSpec, *, column: str | None = None, offline: bool = False) -> Records:
    """The records of a hub dataset's text column."""
    dataset = load_hub_dataset(spec, offline=offline)
    strings = {n: getattr(f, "dtype", None) in ("string", "large_string") for n, f in dataset.features.items()}
    chosen = choose_column(column, strings, f"hub dataset {spec}")
    info = dataset.info
    facts = {"repo": spec.repo, "config": spec.config, "split": spec.split, "column": chosen}
    facts |= {"version": str(info.version) if info.version else None, "license": info.license or None}

    def items() -> Iterator[tuple[int, object]]:
        number = 0
        for batch in dataset.select_columns([chosen]).iter(batch_size=_BATCH):
            for value in batch[chosen]:
                number += 1
                yield number, value

    return Records(items(), f"hub dataset {spec}", "row", facts)


def hub_cache() -> Path:
    """The folder of the hub libraries' caches."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser()


def cached_folder(spec: HubSpec) -> Path | None:
    """Where the hub's cache holds a prepared dataset, if it does."""
    hub_home = hub_cache()
    root = Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(hub_home, "datasets")).expanduser()
    folder = root / spec.repo.replace("/", "___").lower() / (spec.config or "default")
    alternatives = [folder, root / spec.repo.replace("/", "___") / (spec.config or "default")]
    return next((path for path in alternatives if any(path.rglob("*.arrow"))), None)


@contextmanager
def hub_offline(on: bool) -> Iterator[None]:
    """Keep the hub libraries off the network. They read the variable at import, so their copies are set as well."""
    if not on:
        yield
        return
    import datasets
    from huggingface_hub import constants

    places: list[Any] = [datasets.config, constants]
    before = [place.HF_HUB_OFFLINE for place in places]
    variable = os.environ.get("HF_HUB_OFFLINE")
    try:
        os.environ["HF_HUB_OFFLINE"] = "1"
        for place in places:
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value
        if variable is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = variable
