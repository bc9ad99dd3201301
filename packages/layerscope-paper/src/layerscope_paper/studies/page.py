"""Studies on the page: the verdict, the study's own figure and its table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from layerscope.core.conventions import Reading
from layerscope.extras import MissingExtraError
from layerscope.report.sources import Block, Section, of_run


def from_study(run: Any) -> Block:
    """The answer first. The figure is the one in the run's folder, or drawn now."""
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
    corpus, reading = m.get("corpus") or {}, Reading.of(m)
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
    return Block(
        "study",
        f"Study: {m['title']}",
        ", ".join(models) or run.name,
        run.verdict,
        tables={f"Study {run.name}": run.table},
        figures=figures,
        facts=facts,
        **{**of_run(run), "warnings": warnings},
    )


def _figure(run: Any) -> bytes:
    if run.path is not None and (drawn := Path(run.path) / "figure.png").exists():
        return drawn.read_bytes()
    stream = io.BytesIO()
    run.plot().savefig(stream, format="png")
    return stream.getvalue()


SECTION = Section("study", from_study)
