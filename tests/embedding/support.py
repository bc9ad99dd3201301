"""Stopping `embed` where a killed process would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layerscope.embedding import embed, writing


def stop_at(name: str, model: Any, texts: Any, out: Path, **options: Any) -> Path:
    """Stop a run of `embed` at a function of `writing`, and return its working folder."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    owner: Any = writing
    *path, leaf = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(owner, leaf, stop)
        embed(model, texts, out, progress=False, **options)
    return out.with_name(f".{out.name}.embedding")
