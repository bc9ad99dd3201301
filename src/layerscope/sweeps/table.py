"""One tidy table of all that a sweep found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.core.readout import READOUT_COLUMNS, readout_names
from layerscope.evaluation.run import Evaluation
from layerscope.profiling.run import Run
from layerscope.sweeps.jobs import SweepJob

COLUMNS = ["job", "model", "revision", "corpus", "task", "readout", "site", "layer", "depth", "metric", "normalization", "sink"]
COLUMNS += ["value", "ci_low", "ci_high", "n"]


def sweep_table(jobs: Sequence[SweepJob], out: Path) -> pd.DataFrame:
    """Metrics and scores of finished jobs, one row per value: what does not apply to a row is empty."""
    parts = [_profile_rows(job, out) if job.kind == "profile" else _score_rows(job, out) for job in jobs]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


def _profile_rows(job: SweepJob, out: Path) -> pd.DataFrame:
    run = Run.load(out / job.name)
    assert job.corpus is not None
    return _placed(run.table, job, corpus=job.corpus.label, task=None, readout=None)


def _score_rows(job: SweepJob, out: Path) -> pd.DataFrame:
    scores = Evaluation.load(out / job.name).scores
    readouts = readout_names(scores)
    rows = scores.drop(columns=[name for name in READOUT_COLUMNS if name != "sink"]).rename(columns={"score": "value"})
    empty: dict[str, Any] = {"normalization": None, "ci_low": float("nan"), "ci_high": float("nan"), "n": 0}
    return _placed(rows.assign(**empty), job, corpus=None, readout=readouts)


def _placed(rows: pd.DataFrame, job: SweepJob, **more: Any) -> pd.DataFrame:
    return rows.assign(job=job.name, model=job.model.spec_name, revision=job.model.revision, **more)
