"""What a user may write for data: a catalogued name, a file or a folder, or a hub dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

_SPEC = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w.-]*))?(?::(?P<config>[\w.-]+))?(?:/(?P<split>\w[\w.-]*))?",
    re.ASCII,
)


@dataclass(frozen=True)
class HubSpec:
    """A hub dataset: `org/name`, with `@revision`, `:config` and `/split` where they are not the
    usual ones."""

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
    return (
        HubSpec(match["repo"], match["config"], match["split"] or "train", match["revision"])
        if match
        else None
    )


def locate(
    spec: str | os.PathLike[str], catalogued: Container[str], suffixes: tuple[str, ...] = ()
) -> str | Path | HubSpec | None:
    """What a spec names: a catalogued name (a text), what lies on this machine (a path), a hub
    dataset, or nothing.

    What ends like a file, or lies in a folder that exists, is not looked for on the hub.
    """
    text = os.fspath(spec)
    if isinstance(spec, str) and text in catalogued:
        return text
    hub = parse_hub_spec(text) if isinstance(spec, str) else None
    path = Path(text).expanduser()
    try:
        found, folder = path.exists(), path.parent.is_dir()
    except (OSError, ValueError):  # too long or too odd to be asked for as a path at all
        found, folder = False, False
    if found:
        return path
    return None if folder or text.lower().removesuffix(".gz").endswith(suffixes) else hub
