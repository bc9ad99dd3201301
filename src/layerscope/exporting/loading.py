"""An exported folder as a SentenceTransformer. Only modules of known kinds are built: no code of a folder's own runs.

A folder cannot ask to be trusted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from layerscope.core.untrusted import is_plain_name, read_json
from layerscope.errors import ExportError, LayerscopeError, MissingExtraError, one_line

_KNOWN = re.compile(r"sentence_transformers(\.\w+)*\.(Transformer|Pooling|Dense|Normalize|LayerNorm|Dropout|StaticEmbedding)")


def module_kinds(folder: Path) -> list[str]:
    """The types of a folder's modules; an error if one is not of a known kind, or lies outside the folder."""
    kinds = []
    for entry in read_json(folder / "modules.json", expect=list, error=ExportError):
        kind, path = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        known = isinstance(kind, str) and _KNOWN.fullmatch(kind) is not None
        if not known or not (path == "" or is_plain_name(path)):
            raise ExportError(
                f"{folder / 'modules.json'} names the module {one_line(str(kind))!r} in {one_line(str(path))!r}. Only standard "
                "modules of sentence-transformers inside the folder are loaded; code of the folder's own is not run."
            )
        kinds.append(str(kind))
    return kinds


def load_folder(folder: Path) -> Any:
    """The folder as a SentenceTransformer."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("encoding with an exported folder", "export") from None
    module_kinds(folder)
    try:
        options: dict[str, Any] = {"model_kwargs": {"use_safetensors": True}}
        return SentenceTransformer(str(folder), local_files_only=True, trust_remote_code=False, **options)
    except LayerscopeError:
        raise
    except Exception as error:  # of many kinds, from files that can say anything
        raise ExportError(f"{folder} could not be loaded: {one_line(str(error))}") from error
