"""`sweep`: many models, checkpoints and corpora, one job after the other or one per worker of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from layerscope.core.runs import finished_manifest
from layerscope.data import Corpus
from layerscope.engines import Engine, engine_in_use, open_engine
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.progress import Progress, progress_bar
from layerscope.store import RunFolder, atomic
from layerscope.sweeps.estimate import Estimate, estimate_all, profile_config
from layerscope.sweeps.jobs import SweepJob, make_jobs
from layerscope.sweeps.read import CorpusEntry, SweepConfig, read_sweep
from layerscope.sweeps.table import sweep_table
from layerscope.sweeps.work import JobResult, JobWork, bring_home
from layerscope.version import VERSION

STATE = "jobs.json"


@dataclass
class Sweep:
    """What `layerscope.sweep` returns: how each job ended (`jobs`), and one tidy table of all results (`table`)."""

    kind: ClassVar[str] = "sweep"

    path: Path
    jobs: pd.DataFrame
    table: pd.DataFrame
    estimates: list[Estimate] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Sweep:
        """Read a sweep's folder."""
        manifest = finished_manifest(path, cls.kind)
        state = json.loads((Path(path) / STATE).read_text(encoding="utf-8"))
        return cls(Path(path), pd.DataFrame(state["jobs"]), RunFolder(path).read_table("sweep"), manifest=manifest)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of the sweep's folder."""
        return {"sweep": self.table, "jobs": self.jobs}

    def summary(self) -> dict[str, Any]:
        """What a reader wants first, as plain values."""
        return {
            "path": str(self.path),
            "jobs": self.jobs.to_dict(orient="records"),
            "failed": self.failed,
            "estimate": [asdict(one) for one in self.estimates],
        }

    @property
    def failed(self) -> list[dict[str, str]]:
        """Jobs that failed, and why."""
        rows = self.jobs[self.jobs["status"] == "failed"]
        return [{"job": str(row["job"]), "reason": str(row["reason"])} for row in rows.to_dict(orient="records")]


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    engine: str | Engine = "local",
    address: str | None = None,
    estimate_only: bool = False,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    told: Callable[[list[Estimate]], None] | None = None,
) -> Sweep:
    """Run every job of a sweep's file (or of a dict of the same shape); `told` is called with the estimate before it starts.

    Each job is an ordinary run in a folder of its own under `out`: the same sweep again resumes, and one that fails does not
    stop the others. With an engine of several workers, each runs one job at a time.

        done = layerscope.sweep("sweep.yaml")
        done.jobs; done.table; done.failed
    """
    config = read_sweep(source)
    open_engine(engine, address)  # connects to nothing yet
    folder = Path(out or config.out or _default_out(source))
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file; a sweep needs a folder. Choose another --out.")
    if offline:
        config = SweepConfig(**{**vars(config), "offline": True})
    jobs = make_jobs(config, overwrite)
    corpora = {corpus: corpus.load(config.offline) for corpus in config.corpora}
    _check_settings(jobs)
    estimates = estimate_all(jobs, corpora, folder)
    if told is not None:
        told(estimates)
    if estimate_only:
        return Sweep(folder, _state(jobs, {}), sweep_table([], folder), estimates)
    with RunFolder(folder).lock(), engine_in_use(engine, address) as used, progress_bar(progress) as bar:
        results = _run(jobs, corpora, folder, estimates, used, bar)
    state = _state(jobs, results)
    table = sweep_table([job for job in jobs if results[job.name].status == "complete"], folder)
    manifest = {"kind": Sweep.kind, "status": "complete", "name": folder.resolve().name, "layerscope": VERSION, "warnings": []}
    RunFolder(folder).write_table("sweep", table)
    RunFolder(folder).write_manifest(manifest)  # last: it says that the rest is there
    return Sweep(folder, state, table, estimates, manifest)


def _run(
    jobs: Sequence[SweepJob],
    corpora: Mapping[CorpusEntry, Corpus],
    folder: Path,
    estimates: Sequence[Estimate],
    engine: Engine,
    bar: Progress,
) -> dict[str, JobResult]:
    work = JobWork(folder, corpora, max((e.memory or 0 for e in estimates), default=0), alone=not engine.remote)
    # the longest first, so that no worker is left with one at the end; unknown ones before them
    cost = {e.job: float("inf") if e.seconds is None else e.seconds for e in estimates}
    order = sorted(jobs, key=lambda job: -cost[job.name]) if engine.remote else list(jobs)
    bar.begin("sweep|jobs", len(order))
    results: dict[str, JobResult] = {}
    for i, result in engine.run(work, order, bar.advance):
        if result.files is not None:
            bring_home(folder / order[i].name, result)
        results[order[i].name] = result
        atomic.write_json(folder / STATE, {"layerscope": VERSION, "jobs": _state(jobs, results).to_dict(orient="records")})
    return results


def _state(jobs: Sequence[SweepJob], results: Mapping[str, JobResult]) -> pd.DataFrame:
    rows = []
    for job in jobs:
        result = results.get(job.name)
        rows.append(
            {
                "job": job.name,
                "kind": job.kind,
                "model": job.model.spec_name,
                "revision": job.model.revision,
                "corpus": None if job.corpus is None else job.corpus.label,
                "status": "waiting" if result is None else result.status,
                "seconds": None if result is None else round(result.seconds, 2),
                "reason": "" if result is None else result.reason,
            }
        )
    return pd.DataFrame(rows)


def _check_settings(jobs: Sequence[SweepJob]) -> None:
    """A setting that no job can use is an error of the file, not of every job."""
    for job in jobs:
        if job.kind == "profile":
            try:
                profile_config(job)
            except (LayerscopeError, TypeError) as error:
                raise LayerscopeError(f"profile: {error}") from error
            return


def _default_out(source: str | Path | Mapping[str, Any]) -> Path:
    if isinstance(source, Mapping):
        raise LayerscopeError("a sweep from a dict needs a folder: give `out`.")
    return Path("runs") / Path(source).stem
