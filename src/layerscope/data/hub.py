"""The Hugging Face hub: its datasets (with `datasets`), and what its errors mean.

Waits, retries, proxies, mirrors and progress bars are the client's own, set by its variables.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from layerscope.catalogue import is_offline
from layerscope.data.records import Records, Values, choose_column
from layerscope.errors import (
    DataError,
    DownloadError,
    LayerscopeError,
    ModelError,
    OfflineError,
    one_line,
)
from layerscope.extras import missing

__all__ = ["read_hub"]

_SPEC = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w.-]*))?"
    r"(:(?P<config>[\w.-]+))?(/(?P<split>\w[\w.-]*))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BATCH = 1024
_REFUSALS = {
    429: "the hub asks to slow down (HTTP 429, too many requests). Wait some minutes, or log in",
    401: "the hub does not accept the access token, or there is none (HTTP 401). Log in again",
    403: "access is not granted (HTTP 403). Ask for it on the hub's page, then log in",
}


_ANSWERS = {
    "GatedRepoError": "{shown} is gated: accept its terms on the hub and log in (`hf auth login`).",
    "RevisionNotFoundError": "the hub has {repo}, but no revision {revision!r}. Check the name.",
    "RepositoryNotFoundError": "the hub has no {kind} {repo!r}, or it is private. Check the name, "
    "or log in.",
}
"""What an error of the client means, by its name; the first that applies."""


@dataclass(frozen=True)
class HubSpec:
    """A hub dataset: `org/name`, with `@revision`, `:config` and `/split` where they are not the
    usual ones."""

    repo: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        config = f":{self.config}" if self.config else ""
        return f"{self.repo}{revision}{config}/{self.split}"


def parse_hub_spec(text: str) -> HubSpec | None:
    """Return the dataset that a text names, or None if it does not have the form of one.

    >>> parse_hub_spec("Salesforce/wikitext:wikitext-103-raw-v1/test")
    HubSpec(repo='Salesforce/wikitext', config='wikitext-103-raw-v1', split='test', revision=None)
    """
    match = _SPEC.fullmatch(text)
    if match is None:
        return None
    return HubSpec(match["repo"], match["config"], match["split"] or "train", match["revision"])


def locate(
    spec: str | os.PathLike[str], registered: Container[str], suffixes: tuple[str, ...] = ()
) -> str | Path | HubSpec | None:
    """Return what a spec names: a registered name (a text), a file or folder (a path), a hub
    dataset, or nothing.

    A name that ends like a file, or lies in an existing folder, is not looked for on the hub.
    """
    text = os.fspath(spec)
    if isinstance(spec, str) and text in registered:
        return text
    path = Path(text).expanduser()
    try:
        if path.exists():
            return path
        is_local = path.parent.is_dir()
    except (OSError, ValueError):  # too long or too odd for a path
        is_local = False
    if is_local or text.lower().removesuffix(".gz").endswith(suffixes):
        return None
    return parse_hub_spec(text) if isinstance(spec, str) else None


def hub_cache() -> Path:
    """Return the folder of the hub libraries' caches."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(home).expanduser()


def quiet_bars() -> None:
    """Show the client's progress bars only where a person looks."""
    from huggingface_hub import utils

    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        return
    utils.disable_progress_bars()
    if "datasets" in sys.modules:
        sys.modules["datasets"].disable_progress_bars()


# Errors


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that it came from."""
    errors: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in errors:
        errors.append(cause)
        cause = cause.__cause__ or cause.__context__
    return errors


def hub_problem(error: BaseException) -> str | None:
    """Return what the hub's refusal means and what to do; None for any other error."""
    for cause in _chain(error):
        code = getattr(getattr(cause, "response", None), "status_code", None)
        if code in _REFUSALS:
            return f"{_REFUSALS[code]} (`hf auth login`)"
        if isinstance(code, int) and code >= 500:
            return f"the hub has a problem of its own (HTTP {code}). Try again later"
    return None


@contextmanager
def hub_explained(
    kind: Literal["model", "dataset"], repo: str, revision: str | None, shown: str
) -> Iterator[None]:
    """Turn the errors of the client, the network and a dataset's builder into one clear line."""
    quiet_bars()
    try:
        yield
    except LayerscopeError:
        raise
    except Exception as error:
        raise _explain(error, kind, repo, revision, shown) from error


def _explain(
    error: Exception, kind: str, repo: str, revision: str | None, shown: str
) -> LayerscopeError:
    wrong = ModelError if kind == "model" else DataError
    reason = (one_line(str(error)) or "no more is known")[:300].rstrip(".")
    names = {type(cause).__name__ for cause in _chain(error)}
    problem = hub_problem(error)
    if is_offline() or "OfflineModeIsEnabled" in names:
        return OfflineError(
            f"{shown} is not in the local hub cache, and downloads are off. Load it once while "
            "online, or give the path of a file or a folder."
        )
    if "is a gated dataset" in reason:
        names.add("GatedRepoError")
    if problem is None and "DatasetNotFoundError" in names:
        names.add("RepositoryNotFoundError")
    for name, words in _ANSWERS.items():
        if name in names:
            return wrong(words.format(kind=kind, repo=repo, revision=revision, shown=shown))
    if problem is not None:
        return DownloadError(f"{shown} could not be fetched: {problem}.")
    if isinstance(error, ValueError):  # an unknown configuration or split; it lists the valid ones
        return wrong(f"{shown} cannot be used: {reason}.")
    failed = ModelError if kind == "model" else DownloadError
    return failed(
        f"{shown} could not be fetched from the hub ({type(error).__name__}: {reason}), and is not "
        "on this machine. Check the name and the network, or give the path of a file or a folder."
    )


# Datasets


def load_hub_dataset(spec: HubSpec) -> Any:
    """Load a dataset from the hub or from the hub's own cache; its code is never run."""
    try:
        import datasets
    except ImportError as error:
        raise missing("hub datasets") from error
    options = {"revision": spec.revision} if spec.revision else {}
    with hub_explained("dataset", spec.repo, spec.revision, f"hub dataset {spec}"):
        dataset = datasets.load_dataset(spec.repo, spec.config, split=spec.split, **options)
    if is_offline():
        _check_commit(spec, _commit_of(dataset))
    return dataset


def _commit_of(dataset: Any) -> str | None:
    """Return the commit that a dataset was read at: the hub's cache has it in its paths."""
    places = [str(file.get("filename", "")) for file in dataset.cache_files]
    places += list(getattr(dataset.info, "download_checksums", None) or ())
    return next((match[0] for place in places if (match := _COMMIT.search(place))), None)


def _check_commit(spec: HubSpec, commit: str | None) -> None:
    """Refuse another commit than the one that was asked for: without the network, `datasets` gives
    the version that was prepared last."""
    from huggingface_hub import constants

    expected = spec.revision or "main"
    cache = Path(constants.HF_HUB_CACHE, f"datasets--{spec.repo.replace('/', '--')}")
    branch = cache / "refs" / expected
    if branch.is_file():
        expected = branch.read_text(encoding="ascii").strip()
    if commit not in (None, expected) and expected != "main":
        raise OfflineError(
            f"hub dataset {spec} was last prepared on this machine at commit {commit[:12]}, which "
            f"is not the one asked for ({expected[:12]}), and downloads are off. Run once with "
            f"downloads on, or name that commit: {spec.repo}@{commit}."
        )


def dataset_facts(spec: HubSpec, dataset: Any) -> dict[str, Any]:
    """Return what a manifest says of a hub dataset."""
    info = dataset.info
    return {
        "repo": spec.repo,
        "revision": spec.revision,
        "commit": _commit_of(dataset),
        "config": spec.config,
        "split": spec.split,
        "version": str(info.version) if info.version else None,
        "license": info.license or None,
    }


def read_hub(spec: HubSpec, *, column: str | None = None, whole: bool = False) -> Records:
    """Return the records of a hub dataset's text column."""
    dataset = load_hub_dataset(spec)
    features = dataset.features
    strings = {
        name: getattr(feature, "dtype", None) in ("string", "large_string")
        for name, feature in features.items()
    }
    where = f"hub dataset {spec}"
    chosen = choose_column(column, strings, where)
    names = [chosen]
    if whole:
        names = [name for name, feature in features.items() if not hasattr(feature, "decode")]

    def values() -> Values:
        number = 0
        for batch in dataset.select_columns(names).iter(batch_size=_BATCH):
            for row in zip(*(batch[name] for name in names), strict=True):
                number += 1
                yield number, dict(zip(names, row, strict=True))

    facts = {**dataset_facts(spec, dataset), "column": chosen}
    return Records("hub", str(spec), where, "row", values(), chosen, facts)
