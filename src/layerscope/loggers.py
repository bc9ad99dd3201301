"""Send numbers to a function of the user's as they are measured, such as `wandb.log`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from layerscope.errors import LayerscopeError, one_line

OnRows = Callable[[dict[str, Any]], Any]
"""What `on_rows=` takes: a function that is called with a dictionary of names and numbers."""

_log = logging.getLogger("layerscope")


def send(on_rows: OnRows | None, step: int, values: Mapping[str, float]) -> None:
    """Call `on_rows` with the step and the finite values. Where it fails, log a warning and go on.

    >>> send(print, 3, {"train/loss": 0.5, "train/grad_norm": float("nan")})
    {'step': 3, 'train/loss': 0.5}
    """
    finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
    if on_rows is None or not finite:
        return
    try:
        on_rows({"step": step, **finite})
    except LayerscopeError:
        raise
    except Exception as error:
        reason = one_line(str(error))[:200]
        _log.warning("on_rows failed (%s: %s): not logged", type(error).__name__, reason)
