"""Stopping `embed` where a killed process would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layerscope.embedding import embed, writing


def stop_at(name: str, model: Any, texts: Any, out: Path) -> Path:
    """Stop a run of `embed` at a function of `writing`, and return its working folder."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, name, stop)
        with pytest.raises(KeyboardInterrupt):
            embed(model, texts, out, progress=False)
    return out.with_name(f".{out.name}.embedding")
