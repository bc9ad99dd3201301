"""Reading option values."""

from __future__ import annotations

from layerscope.errors import LayerscopeError


def words(text: str | None) -> list[str] | None:
    """A comma-separated list, or None where nothing was given."""
    if text is None:
        return None
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise LayerscopeError(f"expected a comma-separated list of names, got {text!r}.")
    return found


def real(text: str | None, name: str) -> float | None:
    """A number, `inf` included, or None where nothing was given."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise LayerscopeError(f"--{name} takes a number (or inf), not {text!r}.") from None
