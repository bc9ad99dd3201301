"""Results that were imported: kept in the cache, listed, tabled, and laid over the published ones where conventions agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.atlas.overlay import Overlay, overlay_metrics, overlay_scores
from layerscope.atlas.sharing import CARD, COLUMNS, FILE, KINDS, digest_of, read_results
from layerscope.cache import cache_dir
from layerscope.core.readout import READOUT_COLUMNS
from layerscope.core.runs import explain_damage, folder_name
from layerscope.core.tables import lowest_and_highest
from layerscope.core.untrusted import exists, parse_json
from layerscope.errors import DataError, LayerscopeError, UnknownNameError, clean_name, clean_values
from layerscope.store import atomic


@dataclass(frozen=True)
class SharedRun:
    """One run of an imported folder: its rows, and the facts behind them. `name` is `FOLDER:MODEL`."""

    name: str
    kind: str
    rows: pd.DataFrame = field(repr=False)
    facts: dict[str, Any] = field(repr=False)

    def overlay(self) -> Overlay | None:
        """What of it can stand beside the published results; None for a probe."""
        from layerscope.evaluation.run import Evaluation
        from layerscope.profiling.run import Profile

        if self.kind == "probe":
            return None
        with explain_damage(f"the {self.kind} of {self.name}"):
            if self.kind == "profile":
                overlay = overlay_metrics(Profile(self.rows, self.facts, None), whose="its")
            else:
                scores = self.rows.rename(columns={"value": "score", "data": "task"})
                overlay = overlay_scores(Evaluation(scores, pd.DataFrame(), self.facts), whose="its")
        overlay.name, overlay.imported = self.name, True
        return overlay


def runs_of(table: pd.DataFrame, source: str) -> list[SharedRun]:
    """The runs of a checked table, each under `SOURCE:MODEL`."""
    out = []
    for (model, kind, facts), rows in table.groupby(["model", "kind", "facts"], sort=False):
        told = parse_json(str(facts), f"the facts of {source}:{model}")
        if not isinstance(told, dict) or not all(isinstance(told.get(name), dict) for name in ("model", "conventions", "counts")):
            raise DataError(f"the facts of {source}:{model} have no model and conventions. Export the results again.")
        cleaned = clean_values(told)
        cleaned["model"]["name"] = f"{source}:{model}"
        out.append(SharedRun(f"{source}:{model}", str(kind), rows.reset_index(drop=True), cleaned))
    return out


def store_folder() -> Path:
    """Where imported results are kept."""
    return cache_dir() / "atlas"


def import_results(folder: str | Path, *, name: str | None = None, overwrite: bool = False) -> pd.DataFrame:
    """Check an exported folder and keep a copy, which the atlas then lists, shows and compares; returns `imported_models`' rows.

    The models are then called `NAME:MODEL`; `name` is the folder's name by default.
    """
    place = Path(folder)
    table = read_results(place)
    source = folder_name(clean_name(name or place.resolve().name)).strip(".") or "results"
    runs = runs_of(table, source)
    for run in runs:
        run.overlay()  # facts that nothing can be made of are refused now
    target = store_folder() / source
    digest = digest_of(place)
    assert digest is not None
    if exists(target / FILE) and digest_of(target) != digest and not overwrite:
        raise DataError(f"other results were imported as {source!r}. Choose another name=, or overwrite=True to replace them.")
    with atomic.explained(target):
        target.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(target / FILE, (place / FILE).read_bytes())
        atomic.write_bytes(target / CARD, (place / CARD).read_bytes()[: 1 << 20])
    read_results(target)
    every = imported_models()
    return every[every["source"] == source].reset_index(drop=True)


def imported_runs(name: str | None = None) -> list[SharedRun]:
    """The runs that were imported: all, those of a folder (`my-results`) or of a model of it (`my-results:smollm2-135m`)."""
    place = store_folder()
    sources = sorted(child.name for child in place.iterdir() if exists(child / FILE)) if place.is_dir() else []
    wanted, _, model = (name or "").partition(":")
    if name is not None and wanted not in sources:
        raise UnknownNameError("imported results", wanted, sources, "`layerscope atlas import FOLDER` adds some.")
    runs = [run for one in sources if name is None or one == wanted for run in runs_of(read_results(place / one), one)]
    if model:
        found = [run for run in runs if run.name == name]
        if not found:
            raise UnknownNameError(f"model of {wanted}", model, {run.name.partition(":")[2] for run in runs})
        return found
    return runs


def imported(name: str | None = None) -> pd.DataFrame:
    """The rows of imported results, with a column `source`: all, of a folder, or of one model (`my-results:smollm2-135m`)."""
    runs = imported_runs(name)
    parts = [run.rows.assign(source=run.name.partition(":")[0]) for run in runs]
    columns = ["source", *COLUMNS]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def imported_models() -> pd.DataFrame:
    """One row per imported model: model, source, layers, and how many tasks, metrics and probes it has."""
    rows = []
    runs = imported_runs()
    for name in dict.fromkeys(run.name for run in runs):
        mine = [run for run in runs if run.name == name]
        values = {kind: pd.concat([run.rows for run in mine if run.kind == kind] or [mine[0].rows[:0]]) for kind in KINDS}
        rows.append(
            {
                "model": name,
                "source": name.partition(":")[0],
                "layers": int(mine[0].rows["n_blocks"].iloc[0]) + 1,
                "tasks": int(values["evaluation"]["data"].nunique()),
                "metrics": int(values["profile"]["metric"].nunique()),
                "probes": int(values["probe"]["probe"].nunique()),
            }
        )
    return pd.DataFrame(rows, columns=["model", "source", "layers", "tasks", "metrics", "probes"])


def is_imported(name: str) -> bool:
    """Whether a name is of the form of an imported model's: no published one has a colon."""
    return ":" in name


def remove_imported(name: str) -> None:
    """Remove imported results: only the two files that the import wrote are deleted."""
    if not name or folder_name(name) != name or not exists(store_folder() / name / FILE):
        known = [child.name for child in store_folder().iterdir()] if store_folder().is_dir() else []
        if not known:
            raise LayerscopeError(f"there is no {clean_name(name)!r} to forget: nothing is imported yet.")
        raise UnknownNameError("imported results", name, known)
    folder = store_folder() / name
    with atomic.explained(folder):
        for file in (folder / FILE, folder / CARD):
            file.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def show_imported(name: str) -> dict[str, Any]:
    """One imported model as plain values: a row per curve, with its conventions."""
    curves = []
    by = ["kind", "data", "split", "subset", "metric", "normalization", "probe", *READOUT_COLUMNS, "max_length", "unit_length"]
    for run in imported_runs(name):
        for key, rows in run.rows.dropna(subset=["value"]).groupby(by, dropna=False, sort=False):
            named: dict[str, Any] = dict(zip(by, key, strict=True))  # type: ignore[arg-type, unused-ignore]
            line = rows.sort_values("layer")
            y, layers = line["value"].to_numpy(float), line["layer"].astype(int).tolist()
            told = {column: None if pd.isna(value) else value for column, value in named.items()}
            curve = {"layers": layers, "values": y.tolist(), **lowest_and_highest(layers, y), "last": float(y[-1])}
            curves.append({**told, **curve})
    if not curves:
        raise LayerscopeError(f"{name} has no defined values.")
    return {"model": name, "imported": True, "curves": curves}
