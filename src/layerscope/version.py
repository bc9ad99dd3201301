"""The version, and how layerscope was installed: packaging, manifests, messages and the command
line read both from here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["VERSION", "install_command"]

VERSION = "0.2.0"


@cache
def _origin() -> dict[str, Any]:
    """What pip recorded of an install from a folder, a file or a repository; empty for one from a
    package index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        told = json.loads(distribution("layerscope").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and isinstance(told.get("url"), str) else {}


def _source() -> Path | None:
    """The folder or file on this machine that layerscope was installed from, where there was one
    and it is still there."""
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    url = urlparse(_origin().get("url", ""))
    source = Path(url2pathname(url.path))
    return source if url.scheme == "file" and source.exists() else None


def install_command(extra: str) -> str:
    """The line that adds an extra to this installation, whether it came from a checkout, a file, a
    repository or an index.

    `pip install 'layerscope[NAME]'` is wrong for a checkout: another version would come from the
    index, or none at all.
    """
    told, source = _origin(), _source()
    if source is not None:
        editable = "-e " if told.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{source}[{extra}]'"
    vcs = told.get("vcs_info")
    if isinstance(vcs, dict):
        return f"pip install 'layerscope[{extra}] @ {vcs.get('vcs', 'git')}+{told['url']}@{vcs.get('commit_id', 'HEAD')}'"
    if told and not told["url"].startswith("file:"):
        return f"pip install 'layerscope[{extra}] @ {told['url']}'"
    return f"pip install 'layerscope[{extra}]'"


def install_package(name: str) -> str:
    """The line that installs or upgrades a package of this repository: from the checkout, where
    layerscope came from one."""
    source = _source()
    folder = source / "packages" / name if source is not None else None
    return (
        f"pip install -U '{folder}'"
        if folder is not None and folder.is_dir()
        else f"pip install -U {name}"
    )
