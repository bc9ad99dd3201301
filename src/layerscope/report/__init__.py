"""What people look at: tables in the terminal, figures, a notebook's view of a run, and a report in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerscope.report.write import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":
        from layerscope.report.write import write_report

        return write_report
    raise AttributeError(f"module 'layerscope.report' has no attribute {name!r}")
