"""Keeping transformers' progress bars and advice out of the user's terminal."""

from __future__ import annotations

import io
import logging
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


class _NotAdvice(logging.Filter):
    """Lets through everything but the advice to install faster kernels, which would come in the middle of a progress bar."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "is falling back to its reference PyTorch implementation" not in record.getMessage()


def without_advice() -> None:
    """Keep transformers' advice on kernels for state-space models out of the terminal, once and for all."""
    logger = logging.getLogger("transformers.integrations.hub_kernels")
    if not any(isinstance(held, _NotAdvice) for held in logger.filters):
        logger.addFilter(_NotAdvice())
