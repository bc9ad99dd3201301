"""Studies in a report: the verdict, the study's figure and its table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from layerscope.core.identity import Reading
from layerscope.extras import MissingExtraError
from layerscope.report.section import Section


def section(run: Any) -> Section:
    """Return a study's section of the report. The figure is the one in its folder, or is drawn
    now."""
    m = run.manifest
    conventions = m.get("conventions", {})
    models = list(conventions.get("models", {}) or [])
    warnings = [str(w) for w in m["warnings"]]
    try:
        figures = [_figure(run)]
    except MissingExtraError as error:
        figures = []
        warnings.append(
            f"the study's figure is missing: drawing it needs the extra `{error.extra}`"
        )
    corpus = m.get("corpus") or {}
    reading = Reading.of(m)
    facts = {
        "kind": "study",
        "paper": m.get("paper"),
        "models": ", ".join(models) or None,
        "texts": f"{corpus['name']}, {m.get('texts')} prompts" if corpus.get("name") else None,
        "final norm": reading.final_norm,
        "longest text": f"{reading.max_length} tokens" if reading.max_length else None,
        **{f"option {name}": value for name, value in m.get("options", {}).items()},
        "layerscope": m.get("layerscope"),
    }
    return Section.of(
        run,
        f"Study: {m['title']}",
        run.verdict,
        model=", ".join(models) or run.name,
        tables={f"Study {run.name}": run.table},
        figures=figures,
        facts=facts,
        warnings=warnings,
    )


def _figure(run: Any) -> bytes:
    if run.path is not None and (drawn := Path(run.path) / "figure.png").exists():
        return drawn.read_bytes()
    stream = io.BytesIO()
    run.plot().savefig(stream, format="png")
    return stream.getvalue()
