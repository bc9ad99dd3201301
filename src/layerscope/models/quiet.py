"""Keeping transformers' progress bars and advice out of the user's terminal."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr


@contextmanager
def quiet(bars: bool = False) -> Iterator[None]:
    """Errors only while the block runs; with `bars`, nothing at all on stderr (GGUF reading draws bars of its own)."""
    import transformers.utils.logging as hf

    level, shown = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    try:
        silence: AbstractContextManager[object] = redirect_stderr(io.StringIO()) if bars else nullcontext()
        with warnings.catch_warnings(), silence:
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.set_verbosity(level)
        if shown:
            hf.enable_progress_bar()
