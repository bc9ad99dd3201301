"""The kinds of runs that this package adds: studies and sweeps."""

from __future__ import annotations

from layerscope.core.runs import RunKind

STUDY = RunKind(
    "study",
    "layerscope_paper.studies.run:StudyRun",
    {
        "print": "layerscope_paper.studies.terminal:print_study",
        "section": "layerscope_paper.studies.page:section",
        "html": "layerscope.report.notebook:result_html",
        "report": "layerscope.report.page:write_report",
    },
)
SWEEP = RunKind(
    "sweep",
    "layerscope_paper.sweeps.run:Sweep",
    {
        "print": "layerscope_paper.sweeps.terminal:print_sweep",
        "section": "layerscope_paper.sweeps.page:section",
        "html": "layerscope.report.notebook:result_html",
        "report": "layerscope.report.page:write_report",
    },
)
