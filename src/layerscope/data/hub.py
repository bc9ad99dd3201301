"""The Hugging Face hub: how long its client waits, at which commit a run reads it, and its datasets
(with `datasets`)."""

from __future__ import annotations

import errno
import hashlib
import importlib
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from layerscope.core.fingerprints import file_sha256
from layerscope.core.formatting import format_duration
from layerscope.data.readers import Records, choose_column
from layerscope.data.specs import HubSpec
from layerscope.errors import (
    DataError,
    DownloadError,
    LayerscopeError,
    ModelError,
    OfflineError,
    one_line,
)
from layerscope.extras import missing

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PATIENCE = 20.0  # seconds without a byte before the hub counts as silent
_LONGEST_WAIT = (
    60.0  # seconds that a busy hub may ask for; the client would wait for hours without a word
)
_BATCH = 1024
_YES = ("1", "ON", "YES", "TRUE")

Fetched = TypeVar("Fetched")

log = logging.getLogger("layerscope")


class HubBusyError(DownloadError):
    """The hub asks to wait for longer than a command should."""

    def __init__(self, code: int, seconds: float) -> None:
        self.problem = (
            f"the hub asks to wait {format_duration(seconds)} (HTTP {code}, too many requests). Try again then, or log in "
            "(`hf auth login`): it allows more requests to those it knows"
        )
        super().__init__(f"{self.problem}.")


def limit_hub_waits() -> None:
    """Let the hub's client give up on a hub that never answers, or that asks to wait for long: by
    itself it waits on.

    Its bars, and those of `datasets`, are shown only where a person looks.
    """
    from huggingface_hub import get_session, utils

    if not shows_bars():
        utils.disable_progress_bars()
        disable = getattr(sys.modules.get("datasets"), "disable_progress_bars", None)
        if disable is not None:
            disable()
    client = get_session()
    hooks = client.event_hooks
    if _limit_time not in hooks["request"]:
        client.event_hooks = {
            "request": [*hooks["request"], _limit_time],
            "response": [*hooks["response"], _refuse_long_waits],
        }


def _limit_time(request: Any) -> None:
    """The client has no limit of its own, and its settings are for files only."""
    asked = request.extensions.get("timeout") or {}
    kinds = ("connect", "read", "write", "pool")
    request.extensions["timeout"] = {
        kind: min(asked.get(kind) or _PATIENCE, _PATIENCE) for kind in kinds
    }


def _refuse_long_waits(response: Any) -> None:
    seconds = _wait_asked_for(response.headers) if response.status_code in (429, 503) else 0.0
    if seconds > _LONGEST_WAIT:
        raise HubBusyError(response.status_code, seconds)
    if seconds > 2:
        log.info(
            "the hub is busy (HTTP %d): waiting %s", response.status_code, format_duration(seconds)
        )


def retry_hub(ask: Callable[[], Any], tries: int = 3) -> Any:
    """What `ask()` gives, asked again where a connection broke off, or after a short wait that a
    busy hub asked for."""
    for left in reversed(range(tries)):
        try:
            limit_hub_waits()  # the client makes itself anew after a connection that broke off
            return ask()
        except Exception as error:
            wait = _short_wait(error)
            if not left or (
                wait is None and not any(type(one).__name__ in BROKEN_OFF for one in _chain(error))
            ):
                raise
            if wait is None:
                log.info("the connection to the hub broke off; going on from where it was")
            time.sleep(0.0 if wait is None else wait + 1)
    raise AssertionError("never reached")


def _short_wait(error: BaseException) -> float | None:
    """The seconds that a busy hub asked to wait, where it did and they are few."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if getattr(response, "status_code", None) in (429, 503):
            seconds = _wait_asked_for(getattr(response, "headers", {}))
            return seconds if 0 < seconds <= _LONGEST_WAIT else None
    return None


def shows_bars() -> bool:
    """Whether downloads show a bar: on a terminal or in a notebook, unless
    `HF_HUB_DISABLE_PROGRESS_BARS` says no."""
    wanted = os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "0").upper() not in _YES
    return wanted and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def _wait_asked_for(headers: Mapping[str, str]) -> float:
    """The seconds after which a busy hub wants to be asked again; 0 where it does not say."""
    limited = re.search(r"\br=0\b.*\bt=(\d+)", headers.get("ratelimit") or "")
    if limited:
        return float(limited[1])
    after = (headers.get("retry-after") or "").strip()
    if re.fullmatch(r"\d{1,12}", after):
        return float(after)
    with suppress(ValueError, TypeError, OverflowError):  # otherwise it is a date
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    return 0.0


def _chain(error: BaseException) -> list[BaseException]:
    """An error and those that it came from."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen and len(seen) < 20:
        seen.append(at)
        at = at.__cause__ or at.__context__
    return seen


_REFUSALS = {
    429: "the hub asks to slow down (HTTP 429, too many requests). Wait some minutes, or log in",
    401: "the hub does not accept the access token, or there is none (HTTP 401). Log in again",
    403: "access is not granted (HTTP 403). Ask for it on the hub's page, then log in",
}


def hub_problem(error: BaseException) -> str | None:
    """What a failed request means for the user, and what to do; None where the error does not
    tell."""
    seen = _chain(error)
    for one in seen:
        if isinstance(one, HubBusyError):
            return one.problem
        code = getattr(getattr(one, "response", None), "status_code", None)
        if code in _REFUSALS:
            return f"{_REFUSALS[code]} (`hf auth login`)"
        if isinstance(code, int) and code >= 500:
            return f"the hub has a problem of its own (HTTP {code}). Try again later"
    if any("Timeout" in type(one).__name__ for one in seen):
        return f"the hub did not answer within {_PATIENCE:g} seconds. Check the network and the hub's status, and try again"
    if any(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in seen):
        return f"no space is left on the disk of the hub's cache ({hub_cache()}). Free some, or set HF_HOME to another disk"
    if any(type(one).__name__ in BROKEN_OFF for one in seen):
        return "the connection broke off. What has arrived is kept: run the same command again, and it goes on from there"
    return None


BROKEN_OFF = ("ReadError", "RemoteProtocolError", "WriteError", "CloseError")
"""The errors of the hub's client where a connection ends before all of a file has come."""


@contextmanager
def hub_explained(
    kind: Literal["model", "dataset"], repo: str, revision: str | None, shown: str, offline: bool
) -> Iterator[None]:
    """One clear error from the many that asking the hub can raise: the client's, the network's and
    a dataset builder's own."""
    try:
        yield
    except Exception as error:
        if isinstance(error, LayerscopeError) and not isinstance(error, HubBusyError):
            raise
        raise _explained(error, kind, repo, revision, shown, offline) from error


def _explained(
    error: Exception, kind: str, repo: str, revision: str | None, shown: str, offline: bool
) -> LayerscopeError:
    wrong, named = (ModelError, repo) if kind == "model" else (DataError, f"the dataset {repo}")
    reason = (one_line(str(error)) or "no more is known")[:300].rstrip(".")
    kinds = {type(one).__name__ for one in _chain(error)}
    if (
        offline
        or "OfflineModeIsEnabled" in kinds
        or os.environ.get("HF_HUB_OFFLINE", "0").upper() in _YES
    ):
        return OfflineError(
            f"{shown} is not in the local hub cache, and downloads are off. Load it once while online, or give the path of a "
            "file or a folder."
        )
    if "GatedRepoError" in kinds or "is a gated dataset" in reason:
        return wrong(
            f"{shown} is gated: accept its terms on the hub and log in (`hf auth login`), then try again."
        )
    if "RevisionNotFoundError" in kinds:
        return wrong(
            f"the hub has {named}, but no revision {revision!r}. Check the branch, tag or commit."
        )
    problem = hub_problem(error)
    if "RepositoryNotFoundError" in kinds or ("DatasetNotFoundError" in kinds and problem is None):
        return wrong(
            f"the hub has no {kind} {repo!r}, or it is private. Check the spelling, or log in."
        )
    if problem is not None:
        return DownloadError(f"{shown} could not be fetched: {problem}.")
    if isinstance(
        error, ValueError
    ):  # no valid id; of a dataset, an unknown config or split: the message lists the valid ones
        return wrong(f"{shown} cannot be used: {reason}.")
    failed = ModelError if kind == "model" else DownloadError
    return failed(
        f"{shown} could not be fetched from the hub ({type(error).__name__}: {reason}), and is not on this machine. Check the "
        "name and the network, or give the path of a file or a folder."
    )


# --- one commit per run ---


class Pins:
    """At which commit each branch or tag of the hub is read in a run. `note` hears of every new
    one."""

    def __init__(
        self,
        commits: Mapping[str, str] | None = None,
        note: Callable[[dict[str, str]], None] | None = None,
    ) -> None:
        self.commits = {
            str(name): str(commit)
            for name, commit in (commits or {}).items()
            if _COMMIT.fullmatch(str(commit))
        }
        self._note = note
        self._outer = _PINS.get()

    def get(self, name: str) -> str | None:
        """The commit that a branch was read at before, here or in the run of which this one is a
        part."""
        return self.commits.get(name) or (None if self._outer is None else self._outer.get(name))

    def set(self, name: str, commit: str) -> None:
        """Remember a commit, unless one is known."""
        if self._outer is not None and self._outer.get(name) is None:
            self._outer.set(name, commit)
        if name not in self.commits:
            self.commits[name] = commit
            if self._note is not None:
                self._note(dict(self.commits))


_PINS: ContextVar[Pins | None] = ContextVar("layerscope_hub_pins", default=None)


@contextmanager
def pinned(
    commits: Mapping[str, str] | None = None, note: Callable[[dict[str, str]], None] | None = None
) -> Iterator[Pins]:
    """Until the block ends, a branch or tag of the hub stands for one commit, even if it moves
    meanwhile.

    Every command opens one. `commits` are those of a run that is resumed.
    """
    pins = Pins(commits, note)
    token = _PINS.set(pins)
    try:
        yield pins
    finally:
        _PINS.reset(token)


def pinned_revision(kind: str, repo: str, revision: str | None) -> str | None:
    """The commit at which this run reads a branch (`kind` is `models` or `datasets`), or the
    revision as it was given."""
    pins = _PINS.get()
    return (None if pins is None else pins.get(f"{kind}/{repo}@{revision or 'main'}")) or revision


def pin(kind: str, repo: str, revision: str | None, commit: str | None) -> None:
    """Remember the commit that the hub says a branch is. What the local cache says of it may be
    old, and is not for here."""
    pins = _PINS.get()
    if pins is not None and commit is not None and revision != commit:
        pins.set(f"{kind}/{repo}@{revision or 'main'}", commit)


# --- what was downloaded is what was published ---


def is_as_published(file: Path) -> bool:
    """Whether a file in the hub's cache is what its name says: the cache names content by its
    sha256, or as git does."""
    if not file.is_file():
        return not file.is_symlink()
    name = file.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", name):
        return file_sha256(file) == name
    if re.fullmatch(r"[0-9a-f]{40}", name) and file.is_symlink():
        content = file.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == name  # noqa: S324 - git's name, no secret
    return True  # a cache without links says nothing


def hub_folder(kind: str, repo: str) -> Path:
    """The folder of a repository in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"{kind}--{repo.replace('/', '--')}"


def remove_blob(file: Path) -> None:
    """Remove a file from the hub's cache, with the content that it stands for."""
    with suppress(OSError):
        blob = file.resolve()
        file.unlink(missing_ok=True)
        if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
            blob.unlink(missing_ok=True)


def fetch_published(
    fetch: Callable[[], Fetched],
    folder: Callable[[Fetched], Path],
    repo: str,
    offline: bool = False,
    discard: Callable[[Fetched], None] = lambda _: None,
) -> Fetched:
    """What `fetch()` gives, whose files lie in `folder`. Files that came damaged are discarded and
    fetched again, once."""
    for again in (False,) if offline else (True, False):
        got = fetch() if offline else retry_hub(fetch)
        damaged = sorted(
            path
            for path in folder(got).rglob("*")
            if not path.is_dir() and not is_as_published(path)
        )
        if not damaged:
            break
        discard(got)
        for file in damaged:
            if again:
                log.warning(
                    "%s of %s is not what the hub published: it is discarded and fetched again",
                    file.name,
                    repo,
                )
            remove_blob(file)
    else:
        raise DownloadError(
            f"{damaged[0].name} of {repo} is not the file that the hub published: its checksum does not match. The copy was "
            "removed. "
            + (
                "Fetch it again while online."
                if offline
                else "Try again; a proxy or a mirror may have changed it."
            )
        )
    return got


# --- datasets ---


def commit_of(dataset: Any) -> str | None:
    """The commit that a dataset was read at: the hub's cache has it in its paths."""
    if isinstance(dataset, Mapping):
        return next(
            (found for part in dataset.values() if (found := commit_of(part)) is not None), None
        )
    places = _prepared_files(dataset)
    places += list(getattr(getattr(dataset, "info", None), "download_checksums", None) or ())
    return next(
        (match[0] for place in places if (match := _COMMIT.search(place)) is not None), None
    )


def load_published(load: Callable[[], Any], repo: str, offline: bool) -> Any:
    """What `load()` makes of a hub dataset's files. With a damaged one goes what was prepared from
    it."""

    def folder(dataset: Any) -> Path:
        return hub_folder("datasets", repo) / "snapshots" / str(commit_of(dataset))

    def discard(dataset: Any) -> None:
        for prepared in {Path(place).parent for place in _prepared_files(dataset)}:
            shutil.rmtree(prepared, ignore_errors=True)

    return load() if offline else fetch_published(load, folder, repo, discard=discard)


def _prepared_files(dataset: Any) -> list[str]:
    """The files of the hub's library behind a dataset, or behind several in a mapping."""
    if isinstance(dataset, Mapping):
        return [file for part in dataset.values() for file in _prepared_files(part)]
    return [str(file.get("filename", "")) for file in getattr(dataset, "cache_files", None) or ()]


def load_hub_dataset(spec: HubSpec, *, offline: bool = False) -> Any:
    """The dataset, from the hub or from the hub's own cache."""
    try:
        import datasets
    except ImportError as error:
        raise missing("hub datasets") from error
    limit_hub_waits()
    revision = pinned_revision("datasets", spec.repo, spec.revision)
    given = {"revision": revision} if revision else {}
    with (
        hub_offline(offline),
        hub_explained("dataset", spec.repo, spec.revision, f"hub dataset {spec}", offline),
    ):
        dataset = load_published(
            lambda: datasets.load_dataset(spec.repo, spec.config, split=spec.split, **given),
            spec.repo,
            offline,
        )
    if offline:
        _refuse_another_commit(replace(spec, revision=revision), commit_of(dataset))
    else:
        pin("datasets", spec.repo, spec.revision, commit_of(dataset))
    return dataset


def _refuse_another_commit(spec: HubSpec, found: str | None) -> None:
    """Offline, the hub's library gives whatever version of a dataset was prepared last, whichever
    was asked for."""
    wanted = spec.revision or "main"
    if not _COMMIT.fullmatch(wanted):
        try:
            ref = hub_folder("datasets", spec.repo) / "refs" / wanted
            wanted = ref.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            if spec.revision is None:
                return  # nothing says which commit it should be
    if found is not None and found != wanted:
        raise OfflineError(
            f"hub dataset {spec} was last prepared on this machine at commit {found[:12]}, which is not the one asked for "
            f"({wanted[:12]}), and downloads are off. Run once with downloads on, or name that commit: {spec.repo}@{found}."
        )


def dataset_facts(spec: HubSpec, dataset: Any) -> dict[str, Any]:
    """What a manifest says of a hub dataset."""
    info = dataset.info
    return {
        "repo": spec.repo,
        "revision": spec.revision,
        "commit": commit_of(dataset),
        "config": spec.config,
        "split": spec.split,
        "version": str(info.version) if info.version else None,
        "license": info.license or None,
    }


def read_hub(
    spec: HubSpec, *, column: str | None = None, offline: bool = False, whole: bool = False
) -> Records:
    """The records of a hub dataset's text column."""
    dataset = load_hub_dataset(spec, offline=offline)
    strings = {
        n: getattr(f, "dtype", None) in ("string", "large_string")
        for n, f in dataset.features.items()
    }
    chosen = choose_column(column, strings, f"hub dataset {spec}")
    facts = {**dataset_facts(spec, dataset), "column": chosen}

    records = Records(iter(()), f"hub dataset {spec}", "row", facts, whole)
    names = [
        name
        for name, kind in dataset.features.items()
        if name == chosen or (whole and not hasattr(kind, "decode"))
    ]

    def items() -> Iterator[tuple[int, object]]:
        number = 0
        for batch in dataset.select_columns(names).iter(batch_size=_BATCH):
            for row in zip(*(batch[name] for name in names), strict=True):
                number += 1
                cells = dict(zip(names, row, strict=True))
                yield number, records.cell(cells, chosen, cells[chosen])

    records.items = items()
    return records


def hub_cache() -> Path:
    """The folder of the hub libraries' caches."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(home).expanduser()


def cached_folder(spec: HubSpec) -> Path | None:
    """Where the hub's cache holds a prepared dataset, if it does."""
    hub_home = hub_cache()
    root = Path(
        os.environ.get("HF_DATASETS_CACHE") or os.path.join(hub_home, "datasets")
    ).expanduser()
    folder = root / spec.repo.replace("/", "___").lower() / (spec.config or "default")
    alternatives = [folder, root / spec.repo.replace("/", "___") / (spec.config or "default")]
    return next((path for path in alternatives if any(path.rglob("*.arrow"))), None)


@contextmanager
def hub_offline(on: bool) -> Iterator[None]:
    """Keep the hub libraries off the network. They read the variable at import, so their copies are
    set as well."""
    with ExitStack() as undo:
        if on:
            variable = os.environ.get("HF_HUB_OFFLINE")
            undo.callback(
                os.environ.pop if variable is None else os.environ.__setitem__,
                "HF_HUB_OFFLINE",
                variable or "",
            )
            os.environ["HF_HUB_OFFLINE"] = "1"
            for name, part in (("datasets", "config"), ("huggingface_hub", "constants")):
                with suppress(ImportError):
                    place: Any = getattr(importlib.import_module(name), part)
                    undo.callback(setattr, place, "HF_HUB_OFFLINE", place.HF_HUB_OFFLINE)
                    place.HF_HUB_OFFLINE = True
        yield
