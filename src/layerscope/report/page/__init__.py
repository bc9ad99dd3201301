"""The report as one HTML file that needs nothing else: no network, no library, works from disk."""

from layerscope.report.page.html import page

__all__ = ["page"]
