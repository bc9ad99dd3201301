"""Putting the page together: one file, its style and script inside it, its data as inert JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from layerscope.report.contents.gather import Report
from layerscope.report.page.payload import payload

# In reading order: later files use what earlier ones define.
SCRIPTS = ("dom", "state", "scale", "shapes", "chart", "controls", "curves", "scores", "heatmap", "scatter", "tables", "main")


def page(report: Report) -> str:
    """The report as HTML."""
    style = _asset("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(f"{name}.js") for name in SCRIPTS) + "\n})();\n"
    # only this style and this script may run, and nothing may be fetched from anywhere
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    values = {
        "title": escape(_title(report)),
        "policy": escape(policy, quote=True),
        "refresh": _refresh(report.live),
        "style": style,
        "script": script,
        "lead": escape(report.headline.lead),
        "data": inert_json(payload(report)),
    }
    text = _asset("page.html")
    parts = text.split("{{")
    out = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        out += [values[name.strip()], rest]
    return "".join(out)


def inert_json(value: Any) -> str:
    """JSON that cannot end the element it stands in, whatever the texts in it are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _title(report: Report) -> str:
    return f"{', '.join(report.models[:4])}{' …' if len(report.models) > 4 else ''} · layerscope"


def _refresh(live: dict[str, Any] | None) -> str:
    """Without the script, a running page still reloads."""
    if live is None or live.get("done"):
        return ""
    return f'<noscript><meta http-equiv="refresh" content="{int(live.get("every", 5))}"></noscript>'


def _asset(name: str) -> str:
    return files("layerscope.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
