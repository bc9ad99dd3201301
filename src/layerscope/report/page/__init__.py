"""The report as one HTML file: style and scripts inside it, its data as inert JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from layerscope.cache import cache_dir
from layerscope.errors import one_line, printable
from layerscope.extras import require
from layerscope.report.charts import COLORS
from layerscope.report.contents import Report
from layerscope.report.page.payload import payload
from layerscope.store import atomic

__all__ = ["inert_json", "page", "payload"]

# In reading order: later files use what earlier ones define.
SCRIPTS = ["dom", "state", "charts", "controls", "points", "map", "tables", "main"]
# The palette of charts on near-black
ON_DARK = ["#4BA3DB", "#F08A4B", "#3CC79B", "#E29BC3", "#8CCBF2", "#F0B840", "#D8D8D8"]


def page(report: Report) -> str:
    """Return the report as HTML."""
    values = {
        "title": escape(one_line(_title(report))),
        "policy": escape(policy(), quote=True),
        "style": _style(),
        "vega": packed_vega(),
        "script": _script(),
        "lead": escape(one_line(report.headline[0].removesuffix("."))),
        "data": inert_json(payload(report)),
    }
    head, *named_pieces = _asset("page.html").split("{{")
    pieces = [head]
    for piece in named_pieces:
        name, _, text = piece.partition("}}")
        pieces += [values[name.strip()], text]
    return printable("".join(pieces))


@cache
def policy() -> str:
    """Return the page's policy: only its style and its scripts run, and nothing is fetched."""
    scripts = " ".join(f"'{_hash(text)}'" for text in (vega(), _script()))
    return (
        f"default-src 'none'; script-src {scripts}; style-src '{_hash(_style())}'; "
        "img-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def inert_json(value: Any) -> str:
    """Return JSON that cannot end the element it stands in, whatever the texts in it are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def vega() -> str:
    """Return the program that draws the charts. It is put together once and kept in the cache."""
    require("figures")
    file = cache_dir() / "vega" / f"{version('vl-convert-python')}.js"
    if not file.is_file():
        atomic.write_text(file, _bundle())
    return file.read_text(encoding="utf-8")


@cache
def packed_vega() -> str:
    """Return the program as the page holds it: less than half as large."""
    return base64.b64encode(zlib.compress(vega().encode(), 9)).decode()


def _bundle() -> str:
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle  # its stub does not know that all has a default
    return str(bundle())


def _title(report: Report) -> str:
    ellipsis = " …" if len(report.models) > 4 else ""
    return f"{', '.join(report.models[:4])}{ellipsis} · layerscope"


def _style() -> str:
    light, dark = (
        ";".join(f"--c{place}:{color}" for place, color in enumerate(palette))
        for palette in (COLORS, ON_DARK)
    )
    return f":root{{{light}}}\n:root[data-theme=dark]{{{dark}}}\n{_asset('style.css')}"


def _script() -> str:
    body = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _asset(name: str) -> str:
    return files("layerscope.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
