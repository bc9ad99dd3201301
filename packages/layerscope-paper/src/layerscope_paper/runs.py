"""The kinds of runs that this package adds: studies and sweeps."""

from __future__ import annotations

from layerscope.core.runs import RunKind

STUDY = RunKind(
    "study",
    "layerscope_paper.studies.run:StudyRun",
    {
        "print": "layerscope_paper.studies.terminal:print_study",
        "html": "layerscope.report.notebook:result_html",
        "report": "layerscope.report.write:write_report",
    },
)
SWEEP = RunKind(
    "sweep",
    "layerscope_paper.sweeps.run:Sweep",
    {
        "print": "layerscope_paper.sweeps.terminal:print_sweep",
        "html": "layerscope.report.notebook:result_html",
        "report": "layerscope.report.write:write_report",
    },
)
