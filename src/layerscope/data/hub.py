"""Datasets from the Hugging Face hub, through the optional `datasets` package."""

from __future__ import annotations

import errno
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.data.readers import Records, choose_column
from layerscope.errors import DataError, DownloadError, LayerscopeError, MissingExtraError, OfflineError

_SPEC = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w.-]*))?(?::(?P<config>[\w.-]+))?(?:/(?P<split>\w[\w.-]*))?", re.ASCII
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PATIENCE = 20.0  # seconds without a byte before the hub counts as silent
_BATCH = 1024


@dataclass(frozen=True)
class HubSpec:
    """A hub dataset: `org/name`, with `@revision`, `:config` and `/split` where they are not the usual ones."""

    repo: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None

    def __str__(self) -> str:
        pin = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{pin}{':' + self.config if self.config else ''}/{self.split}"


def parse_hub_spec(text: str) -> HubSpec | None:
    """The dataset that a text names, or None if it does not have the form of one.

    >>> parse_hub_spec("Salesforce/wikitext:wikitext-103-raw-v1/test")
    HubSpec(repo='Salesforce/wikitext', config='wikitext-103-raw-v1', split='test', revision=None)
    """
    match = _SPEC.fullmatch(text)
    return HubSpec(match["repo"], match["config"], match["split"] or "train", match["revision"]) if match else None


def set_patience() -> None:
    """Let the hub's client give up on a hub that accepts and never answers: by itself it waits without end."""
    from huggingface_hub import utils

    make = getattr(utils, "set_client_factory", None)
    default = getattr(getattr(utils, "_http", None), "default_client_factory", None)
    current = getattr(getattr(utils, "_http", None), "_GLOBAL_CLIENT_FACTORY", None)
    if make is None or default is None or current is not default:
        return  # an earlier client, or one that the user has set up
    create: Any = default

    def limit(request: Any) -> None:  # a request that asks for no limit would overrule the client's own
        asked = request.extensions.get("timeout") or {}
        kinds = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {kind: min(asked.get(kind) or _PATIENCE, _PATIENCE) for kind in kinds}

    def patient() -> Any:
        client = create()
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "request": [*hooks.get("request", ()), limit]}
        return client

    make(patient)


def hub_problem(error: BaseException) -> str | None:
    """What a failed request means for the user, and what to do; None where the error does not tell."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen and len(seen) < 20:
        seen.append(at)
        at = at.__cause__ or at.__context__
    for one in seen:
        code = getattr(getattr(one, "response", None), "status_code", None)
        if code == 429:
            return "the hub asks to slow down (HTTP 429, too many requests). Wait some minutes, or log in (`hf auth login`)"
        if code == 401:
            return "the hub does not accept the access token, or there is none (HTTP 401). Log in again (`hf auth login`)"
        if code == 403:
            return "access is not granted (HTTP 403). Ask for it on the hub's page, then log in (`hf auth login`)"
        if isinstance(code, int) and code >= 500:
            return f"the hub has a problem of its own (HTTP {code}). Try again later"
    if any("Timeout" in type(one).__name__ for one in seen):
        return f"the hub did not answer within {_PATIENCE:g} seconds. Check the network and the hub's status, and try again"
    if any(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in seen):
        return f"no space is left on the disk of the hub's cache ({hub_cache()}). Free some, or set HF_HOME to another disk"
    return None


def commit_of(dataset: Any) -> str | None:
    """The commit that a dataset was read at: the hub's cache has it in its paths."""
    places = [str(file.get("filename", "")) for file in getattr(dataset, "cache_files", None) or ()]
    places += list(getattr(getattr(dataset, "info", None), "download_checksums", None) or ())
    return next((found[0] for place in places if (found := _COMMIT.search(place)) is not None), None)


def load_hub_dataset(spec: HubSpec, *, offline: bool = False) -> Any:
    """The dataset, from the hub or from the hub's own cache."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"reading the hub dataset {spec}", "hub") from error
    set_patience()
    pin = {"revision": spec.revision} if spec.revision else {}
    with hub_offline(offline):
        try:
            dataset = datasets.load_dataset(spec.repo, spec.config, split=spec.split, **pin)
        except Exception as error:  # of many kinds: the hub's, the network's and the builder's own
            raise _explained(spec, error, offline) from error
    if offline:
        _refuse_another_commit(spec, commit_of(dataset))
    return dataset


def _refuse_another_commit(spec: HubSpec, found: str | None) -> None:
    """Offline, the hub's library gives whatever version of a dataset was prepared last, whichever was asked for."""
    wanted = spec.revision or "main"
    if not _COMMIT.fullmatch(wanted):
        from huggingface_hub import constants

        ref = Path(constants.HF_HUB_CACHE) / f"datasets--{spec.repo.replace('/', '--')}" / "refs" / wanted
        try:
            wanted = ref.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            if spec.revision is None:
                return  # nothing says which commit it should be
    if found is not None and found != wanted:
        raise OfflineError(
            f"hub dataset {spec} was last prepared on this machine at commit {found[:12]}, which is not the one asked for "
            f"({wanted[:12]}), and downloads are off. Run once with downloads on, or name that commit: {spec.repo}@{found}."
        )


def _explained(spec: HubSpec, error: Exception, offline: bool) -> LayerscopeError:
    reason = (" ".join(str(error).split()) or type(error).__name__).rstrip(".")
    if offline or os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return OfflineError(
            f"hub dataset {spec} is not in the hub cache, and downloads are off ({reason}). "
            f"Run once with downloads on, or give a file of texts instead."
        )
    problem = hub_problem(error)
    if problem is not None:
        return DownloadError(f"hub dataset {spec} could not be loaded: {problem}. A file of texts can be given instead.")
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
    facts = {"repo": spec.repo, "revision": spec.revision, "commit": commit_of(dataset), "config": spec.config}
    facts |= {"split": spec.split, "column": chosen}
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
    places: list[Any] = []
    for name, part in (("datasets", "config"), ("huggingface_hub", "constants")):
        with suppress(ImportError):
            places.append(getattr(importlib.import_module(name), part))
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
