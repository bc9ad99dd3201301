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
    """Return pip's record of an install from a folder, a file or a repository; empty for a package
    index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        record = json.loads(distribution("layerscope").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("url"), str) else {}


def _source() -> Path | None:
    """Return the folder or file on this machine that layerscope was installed from, or None."""
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    url = urlparse(_origin().get("url", ""))
    source = Path(url2pathname(url.path))
    return source if url.scheme == "file" and source.exists() else None


def install_command(extra: str) -> str:
    """Return the line that adds an extra to this installation: from the checkout, file, repository
    or index that layerscope came from."""
    record = _origin()
    source = _source()
    if source is not None:
        editable = "-e " if record.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{source}[{extra}]'"
    url = record.get("url", "file:")
    vcs = record.get("vcs_info")
    if isinstance(vcs, dict):
        url = f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'HEAD')}"
    address = "" if url.startswith("file:") else f" @ {url}"
    return f"pip install 'layerscope[{extra}]{address}'"


def install_package(name: str) -> str:
    """Return the line that installs or upgrades a package of this repository: from the checkout, if
    layerscope came from one."""
    source = _source()
    if source is not None and (source / "packages" / name).is_dir():
        return f"pip install -U '{source / 'packages' / name}'"
    return f"pip install -U {name}"
