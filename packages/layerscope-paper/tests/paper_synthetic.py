"""A study and a sweep without a model, whose numbers are known."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tests.report.synthetic import synthetic_run

from layerscope_paper import StudyRun, Sweep


def synthetic_study(tmp: Path | None = None) -> StudyRun:
    """A finished study with its verdict; with a folder, its figure is a file there."""
    table = pd.DataFrame(
        {
            "model": ["a", "b"],
            "layer": [0, 1],
            "metric": ["prompt_entropy"] * 2,
            "value": [1.5, 2.5],
        }
    )
    manifest = {
        "kind": "study",
        "status": "complete",
        "study": "extreme",
        "title": "Extreme inputs",
        "paper": "section 5",
        "verdict": [
            "Repeated tokens lower the entropy of the middle layers.",
            "By 1.0 nats at layer 1.",
        ],
        "options": {"levels": [0.0, 1.0]},
        "conventions": {"models": {"a": {}, "b": {}}, "max_length": 64, "final_norm": "raw"},
        "corpus": {"name": "lee"},
        "texts": 12,
        "layerscope": "0.1.0",
        "warnings": [],
    }
    return StudyRun(table, manifest, tmp)


def synthetic_sweep() -> Sweep:
    """Two jobs, one of which failed."""
    jobs = pd.DataFrame(
        [
            {
                "job": "small--lee",
                "kind": "profile",
                "model": "small",
                "status": "complete",
                "seconds": 3.0,
                "reason": "",
            },
            {
                "job": "large--lee",
                "kind": "profile",
                "model": "large",
                "status": "failed",
                "seconds": None,
                "reason": "no memory",
            },
        ]
    )
    table = synthetic_run().table.assign(
        job="small--lee", model="small", revision=None, corpus="lee", task=None, readout=None
    )
    manifest = {"kind": "sweep", "status": "complete", "layerscope": "0.1.0", "warnings": []}
    return Sweep(Path("sweeps/night"), jobs, table, manifest=manifest)
