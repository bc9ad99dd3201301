"""What a worker answers: a result, or what went wrong in words. An exception itself may not survive the way."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layerscope import errors
from layerscope.errors import LayerscopeError


@dataclass(frozen=True)
class Outcome:
    """`result`, unless there is a `reason`. `refused` names the error's class where trying again would change nothing."""

    result: Any = None
    reason: str | None = None
    refused: str | None = None
    trace: str = ""

    def error(self) -> LayerscopeError:
        """A refusal as the error that it was."""
        kind = getattr(errors, self.refused or "", LayerscopeError)
        error: LayerscopeError = kind.__new__(kind)  # some take more than their message
        Exception.__init__(error, self.reason)
        return error


def attempt(function: Callable[..., Any], *given: Any) -> Outcome:
    """Call a function; whatever it raises becomes part of the outcome."""
    try:
        return Outcome(function(*given))
    except LayerscopeError as error:
        return Outcome(reason=str(error), refused=type(error).__name__)
    except Exception as error:
        return Outcome(reason=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
