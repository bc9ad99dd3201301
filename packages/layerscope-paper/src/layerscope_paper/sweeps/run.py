"""`sweep`: run a plan, one step after the other or one per worker of a cluster, into run folders
and one table."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from layerscope.cache import cache_dir
from layerscope.command import Command, make_manifest
from layerscope.core.runs import finished_manifest, folder_name
from layerscope.data import Corpus
from layerscope.engines import Advance, Engine, Work, ignore_progress
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.progress import Progress
from layerscope.store import RunFolder, StoredRun, atomic
from layerscope_paper.sweeps.plan import SweepPlan, read_plan
from layerscope_paper.sweeps.steps import COLUMNS, PlannedCorpus, Step, profile_config

_MARK = ".sweep"


@dataclass
class Sweep(StoredRun):
    """The result of `layerscope_paper.sweep`: the outcome of each step (`jobs`), and one tidy
    `table` of all values."""

    kind: ClassVar[str] = "sweep"
    files: ClassVar[dict[str, str]] = {"sweep": "table"}

    path: Path
    jobs: pd.DataFrame
    table: pd.DataFrame
    manifest: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Sweep:
        """Read the folder of a sweep or a recipe."""
        manifest = finished_manifest(path, cls.kind)
        return cls(
            Path(path),
            pd.DataFrame(manifest["jobs"]),
            **cls.read(RunFolder(path)),
            manifest=manifest,
        )

    @property
    def name(self) -> str:
        """The plan's name."""
        return str(self.manifest.get("name") or self.path.resolve().name)

    @property
    def failed(self) -> list[dict[str, str]]:
        """The steps that failed, with the reason."""
        rows = self.jobs[self.jobs["status"] == "failed"]
        return [
            {"job": str(row["job"]), "reason": str(row["reason"])}
            for row in rows.to_dict(orient="records")
        ]

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table of all values, and the outcome of each step."""
        return {**super().tables(), "jobs": self.jobs}

    def write(self, folder: RunFolder) -> None:
        """Write the table; the manifest has the jobs."""
        folder.write_table("sweep", self.table)

    def summary(self) -> dict[str, Any]:
        """Return the outcome of each step as plain values."""
        return {
            "path": str(self.path),
            "name": self.name,
            "jobs": self.jobs.to_dict(orient="records"),
            "failed": self.failed,
        }


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step; `files` is its folder's content if the worker could not write to the
    sweep's folder."""

    status: str
    seconds: float
    reason: str = ""
    verdict: tuple[str, ...] = ()
    files: dict[str, bytes] | None = None


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    only: Sequence[str] | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> Sweep:
    """Run every step of a plan: a YAML file, a recipe of the package (`paper`), or a dict of the
    same shape.

    Each step is an ordinary run in a folder under `out`. Running the same plan again
    resumes it, and a step that fails does not stop the others. With an engine of several workers,
    each worker runs one step at a time.

    - `out`: the folder, by default in `runs/` with the plan's name.
    - `only`: the names of the steps to run.
    - `dry_run`: run nothing; `jobs` lists the steps, and which of them are finished.

    Options of the models (dtype, device, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords, as for `layerscope.profile`. They apply to all
    steps; the plan's settings of a model come first.

        result = layerscope_paper.sweep("sweep.yaml")
        result.jobs; result.table; result.failed
    """
    command = Command("sweep", options, engine=engine, progress=progress)
    plan = read_plan(source).only(only)
    plan = plan.set(
        overwrite=overwrite, model_options=command.loading, batch_size=command.where.batch_size
    )
    stem = plan.name if isinstance(source, Mapping) else Path(str(source)).stem
    folder = Path(out or Path("runs") / folder_name(stem))
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file; a sweep needs a folder. Choose another out=.")
    place = RunFolder(folder)
    corpora = {corpus: corpus.load() for corpus in plan.corpora}
    _check_settings(plan.steps)
    if dry_run:
        complete = [step.name for step in plan.steps if step.is_complete(folder / step.name)]
        finished = dict.fromkeys(complete, StepResult("complete", 0.0))
        manifest = _manifest(plan, finished, "running")
        return Sweep(folder, pd.DataFrame(manifest["jobs"]), _table([], folder), manifest)
    with place.lock(_MARK), command:
        results = _run(plan, corpora, folder, command)
        complete_steps = [step for step in plan.steps if results[step.name].status == "complete"]
        table = _table(complete_steps, folder)
        manifest = _manifest(plan, results, "complete")
        return Sweep(folder, pd.DataFrame(manifest["jobs"]), table, manifest).save(folder)


def _run(
    plan: SweepPlan,
    corpora: Mapping[PlannedCorpus, Corpus],
    folder: Path,
    command: Command,
) -> dict[str, StepResult]:
    engine = command.engine
    bar = command.bar
    memory = max((step.memory for step in plan.steps), default=0)
    work = StepWork(folder, corpora, memory, alone=not engine.remote)
    order = list(plan.steps)
    advance = ignore_progress
    if engine.remote:
        # the largest first, so that no worker starts with one at the end
        order.sort(key=lambda step: -step.memory)
        advance = bar.advance
        bar.begin(f"{plan.name}|steps", len(order))
    else:
        work.progress = _StepProgress(bar, [step.name for step in order])
    results: dict[str, StepResult] = {}
    for i, result in engine.run(work, order, advance):
        if result.files is not None:
            write_sent_files(folder / order[i].name, result)
        results[order[i].name] = result
        RunFolder(folder).write_manifest(_manifest(plan, results, "running"))
    return results


class _StepProgress:
    """The progress of a plan that runs in this process: the stages of each step, after its number
    and name."""

    def __init__(self, bar: Progress, names: Sequence[str]) -> None:
        self._bar = bar
        self._names = list(names)
        self._name = ""

    def next(self, name: str) -> None:
        """Start a step."""
        self._name = name

    def begin(self, label: str, total: int, finished: int = 0) -> None:
        """Start a stage of the step."""
        number = f"{self._names.index(self._name) + 1}/{len(self._names)}"
        self._bar.begin(f"{number} {self._name}: {label}", total, finished)

    def advance(self, units: int) -> None:
        """Count finished units."""
        self._bar.advance(units)


class StepWork(Work[Step, StepResult]):
    """Steps as work for an engine: an error belongs to its step alone."""

    def __init__(
        self,
        out: Path,
        corpora: Mapping[PlannedCorpus, Corpus],
        memory: int = 0,
        alone: bool = True,
    ) -> None:
        """Prepare the folder; `alone`: one step at a time runs on a machine."""
        self.out = out.absolute()
        self.corpora = dict(corpora)
        self.memory = memory
        self.alone = alone
        self.progress: _StepProgress | None = None
        self.mark = f"{self.out} {time.time_ns()}"
        atomic.write_text(self.out / _MARK, self.mark)

    def run(self, item: Step, advance: Advance) -> StepResult:
        """Run the step in the sweep's folder if this machine sees it, else in a local cache."""
        shared = self._sees_folder()
        # the cache stays, so that a step that returns to this machine resumes
        cache = cache_dir() / "sweeps" / hashlib.sha256(str(self.out).encode()).hexdigest()[:16]
        folder = (self.out if shared else cache) / item.name
        if self.progress is not None:
            self.progress.next(item.name)
        start = time.perf_counter()
        try:
            run = item.run(folder, self.corpora, alone=self.alone, progress=self.progress or False)
        except Exception as error:  # the other steps must still run
            reason = " ".join(str(error).split()) or "no reason given"
            kind = "" if isinstance(error, LayerscopeError) else f"{type(error).__name__}: "
            return StepResult("failed", time.perf_counter() - start, kind + reason)
        finally:
            advance(1)
        failures = getattr(run, "failed", None) or ()
        problems = [f"{task['task']}: {task['reason']}" for task in failures]
        files = None
        if not shared:
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        return StepResult(
            "failed" if problems else "complete",
            time.perf_counter() - start,
            "; ".join(problems),
            tuple(getattr(run, "verdict", ())),
            files,
        )

    def give_up(self, item: Step, reason: str) -> StepResult:
        """Return the failure of a step that lost its worker too often."""
        return StepResult("failed", 0.0, reason)

    def name(self, item: Step) -> str:
        """Return the step's name."""
        return item.name

    def _sees_folder(self) -> bool:
        try:
            return (self.out / _MARK).read_text(encoding="utf-8") == self.mark
        except OSError:
            return False


def write_sent_files(folder: Path, result: StepResult) -> None:
    """Write a step's folder from the files that its worker sent; the manifest comes last, because
    it marks a complete folder."""
    files = dict(result.files or {})
    for name in sorted(files, key=lambda name: name == "manifest.json"):
        atomic.write_bytes(folder / name, files[name])


def _table(steps: Sequence[Step], out: Path) -> pd.DataFrame:
    """Return every value of finished steps, one row each."""
    tables = [table for step in steps if len(table := step.rows(out / step.name))]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)


def _manifest(plan: SweepPlan, results: Mapping[str, StepResult], status: str) -> dict[str, Any]:
    jobs = [_row(step, results.get(step.name)) for step in plan.steps]
    facts = {"status": status, "name": plan.name, "about": plan.about}
    return make_manifest(Sweep.kind, **facts, warnings=[], jobs=jobs)


def _row(step: Step, result: StepResult | None) -> dict[str, Any]:
    """Return the outcome of a step as a row of `jobs`."""
    status: dict[str, Any] = {"status": "waiting", "seconds": None, "reason": "", "verdict": []}
    if result is not None:
        status = {
            "status": result.status,
            "seconds": round(result.seconds, 2),
            "reason": result.reason,
            "verdict": list(result.verdict),
        }
    return {
        "job": step.name,
        "kind": step.kind,
        "study": step.study or None,
        "model": step.model,
        "revision": step.revision,
        "corpus": None if step.corpus is None else step.corpus.label,
        **status,
    }


def _check_settings(steps: Sequence[Step]) -> None:
    """Refuse settings of profiles that are not valid, before any step runs."""
    for step in steps:
        if step.kind == "profile":
            try:
                profile_config(step)
            except (LayerscopeError, TypeError) as error:
                raise LayerscopeError(f"profile: {error}") from error
