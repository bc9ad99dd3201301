"""Results of your own as a dataset that others can open: one parquet file and a data card.

    from layerscope import atlas
    atlas.export_results(["runs/profile", "runs/scores"], "my-results")  # a folder, ready for a hub dataset

Every row is one value at one layer, with the conventions behind it in columns. `facts` has all of them as JSON, so that the file
alone says whether two values compare. Texts, vectors and places on the disk are never in it. Whoever has the folder lays it over
the published results as they do a run of their own (`layerscope atlas compare Pythia-410m --run my-results`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pandas as pd

from layerscope.atlas.overlay import Overlay, load_overlay, overlay_metrics, overlay_scores
from layerscope.core.columns import PROFILE, Column, with_added
from layerscope.core.conventions import Reading
from layerscope.core.identity import DECISIVE
from layerscope.core.parquet import check_parquet, weight
from layerscope.core.runs import explain_damage, explain_damage_in, load_run
from layerscope.core.sites import whole_layers
from layerscope.core.untrusted import exists, parse_json, sha256_of
from layerscope.errors import DataError, clean_name, clean_values, one_line
from layerscope.store import atomic
from layerscope.version import VERSION

FILE, CARD = "results.parquet", "README.md"
KINDS = ("profile", "evaluation", "probe")
LICENSE = "unknown"

COLUMNS = {
    column.name: column
    for column in (
        Column("run", str, "the run that the row is from"),
        Column("model", str, "the model's name"),
        Column("family", str, "its architecture's family"),
        Column("kind", str, "profile, evaluation or probe"),
        Column("data", str, "corpus, task or data set"),
        Column("task_type", str, "of an evaluation: STS, Classification, …"),
        Column("split", str, "of an evaluation: the task's split"),
        Column("subset", str, "of an evaluation: the task's subset"),
        Column("probe", str, "of a probe: its kind"),
        Column("template", str, "of an evaluation: the words around each text"),
        Column("pooling", str, "of an evaluation: how tokens become one vector"),
        Column("final_norm", str, "the model's final norm: `applied` at every layer, `raw` at none, `hf` at the last"),
        Column("centering", str, "of an evaluation: `corpus` where the mean of the texts is subtracted"),
        *PROFILE,
        Column("n_blocks", int, "the model's blocks"),
        Column("max_length", int, "tokens to which texts were cut"),
        Column("unit_length", bool, "of an evaluation: whether vectors were scaled to length 1"),
        Column("dtype", str, "precision of the weights"),
        Column("weights_sha256", str, "digest of the weights"),
        Column("revision", str, "the hub's commit, where there is one"),
        Column("layerscope", str, "the version that measured it"),
        Column("facts", str, "model, data and all conventions of the run as JSON"),
    )
}
_TEXT = [name for name, column in COLUMNS.items() if column.kind is str]

_MOST_ROWS, _MOST_UNPACKED = 2_000_000, 2**30
_MODEL_FACTS = ["name", "source", "revision", *DECISIVE, "quantization", "license", "n_blocks", "width", "parameters"]
_DATA_FACTS = ("name", "fingerprint", "kind", "filters", "limit", "read")
_TASK_FACTS = ("task_type", "main_score", "splits", "subsets", "dataset", "revision", "items", "limit", "exact", "exact_reason")


# --- out ---


def export_results(
    runs: Any, out: str | Path, *, title: str | None = None, license: str = LICENSE, overwrite: bool = False
) -> Path:
    """Write profiles, evaluations and probes (runs, or their folders) as `results.parquet` and a data card; returns the folder.

    `title` is the name on the card, `license` that of the results. The folder can be uploaded as it is: `hf upload --repo-type
    dataset you/name FOLDER`.
    """
    given = [runs] if isinstance(runs, (str, Path)) or hasattr(runs, "manifest") else list(runs)
    if not given:
        raise DataError("give at least one run to export: the folder of a profile, an evaluation or a probe.")
    folder = Path(out)
    _check_free(folder, overwrite)
    with explain_damage_in([run for run in given if isinstance(run, (str, Path))]):
        tables = [run_rows(load_run(run) if isinstance(run, (str, Path)) else run) for run in given]
        table = pd.concat(tables, ignore_index=True).drop_duplicates(ignore_index=True)
        packed = _packed(table)
    with atomic.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write_table(packed, folder / FILE)
        name = one_line(title or folder.resolve().name)
        atomic.write_text(folder / CARD, data_card(table, name, license, sha256_of(folder / FILE)))
    return folder


def run_rows(run: Any) -> pd.DataFrame:
    """One run as rows of the shared table."""
    kind = str(getattr(run, "kind", ""))
    if kind not in KINDS:
        raise DataError(f"a run of kind {kind!r} has no values per layer to share. Valid: {', '.join(KINDS)}.")
    manifest = run.manifest
    model, reading = manifest["model"], Reading.of(manifest)
    if kind == "profile":
        rows = whole_layers(run.table).assign(data=manifest["corpus"]["name"])
    elif kind == "evaluation":
        rows = run.scores.rename(columns={"score": "value", "task": "data"})
    else:
        rows = whole_layers(run.table).assign(data=manifest["data"]["name"])
    facts = _facts(kind, manifest)
    shared: dict[str, Any] = {
        "model": facts["model"]["name"],
        "family": model.get("family"),
        "kind": kind,
        "n_blocks": model["n_blocks"],
        "max_length": reading.max_length,
        "unit_length": manifest["conventions"].get("unit_length"),
        "dtype": model.get("dtype"),
        "weights_sha256": model.get("weights_sha256"),
        "revision": model.get("revision"),
        "layerscope": manifest.get("layerscope", VERSION),
        "facts": json.dumps(facts, sort_keys=True),
    }
    if "final_norm" not in rows:
        shared["final_norm"] = reading.final_norm
    shared["run"] = hashlib.sha256(shared["facts"].encode()).hexdigest()[:12]
    rows = rows.assign(**shared, data=rows["data"].map(_without_place)).reindex(columns=list(COLUMNS))
    for name in _TEXT:
        rows[name] = rows[name].map(lambda value: None if pd.isna(value) else clean_name(str(value))).astype(object)
    return rows.reset_index(drop=True)


def _facts(kind: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What of a manifest a reader needs to compare, and nothing of the machine it was made on."""

    def only(part: Any, names: Sequence[str]) -> dict[str, Any]:
        return {name: part[name] for name in names if isinstance(part, Mapping) and name in part}

    facts: dict[str, Any] = {
        "model": only(manifest["model"], _MODEL_FACTS),
        "conventions": manifest["conventions"],
        "counts": manifest.get("counts", {}),
    }
    if kind == "profile":
        facts["corpus"] = only(manifest["corpus"], _DATA_FACTS)
    elif kind == "probe":
        facts["data"] = only(manifest["data"], _DATA_FACTS)
    else:
        facts["tasks"] = {name: only(task, _TASK_FACTS) for name, task in manifest["tasks"].items()}
    cleaned: dict[str, Any] = _without_places(atomic.plain(facts))
    return cleaned


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_places(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_places(inner) for inner in value]
    return _without_place(value)


def _without_place(value: Any) -> Any:
    """A path on a disk as its last part; other values as they are.

    >>> _without_place("/home/anna/reviews.csv"), _without_place("org/model")
    ('reviews.csv', 'org/model')
    """
    if not isinstance(value, str):
        return value
    kind = PureWindowsPath if re.match(r"[A-Za-z]:\\", value) else PurePosixPath
    is_place = kind(value).is_absolute() or value.startswith(("~/", "./", "../"))
    return (kind(value).name or "a path") if is_place else value


def _schema() -> Any:
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return pa.schema([(name, kinds[column.kind]) for name, column in COLUMNS.items()])


def _packed(table: pd.DataFrame) -> Any:
    import pyarrow as pa

    return pa.Table.from_pandas(table, schema=_schema(), preserve_index=False)


def _write_table(table: Any, file: Path) -> None:
    import pyarrow.parquet as pq

    packed = table.replace_schema_metadata(None)
    atomic.write(file, lambda stream: pq.write_table(packed, stream, compression="zstd", use_dictionary=_TEXT))


def _check_free(folder: Path, overwrite: bool) -> None:
    if not exists(folder):
        return
    if not folder.is_dir():
        raise DataError(f"{folder} is a file; results need a folder. Choose another out=.")
    inside = {child.name for child in folder.iterdir()}
    if not inside:
        return
    if not overwrite or digest_of(folder) is None:
        raise DataError(f"{folder} is not empty. Choose another out=, or overwrite=True to replace results exported earlier.")


def data_card(table: pd.DataFrame, title: str, license: str, digest: str) -> str:
    """README.md in the form that the Hugging Face hub reads for datasets."""
    size = next((f"{low}<n<{high}" for low, high, most in _SIZES if len(table) < most), "1M<n<10M")
    lines = ["---", f"license: {_quoted(license)}", f"pretty_name: {_quoted(title)}", "tags:"]
    lines += ["- layerscope", "- embeddings", "- interpretability", "size_categories:", f"- {size}"]
    lines += ["configs:", "- config_name: default", f"  data_files: {FILE}", f"results_sha256: {digest}", "---", ""]
    lines += [f"# {_cell(title)}", ""]
    models = table["model"].nunique()
    lines += [f"What every layer holds: {len(table):,} values of {models} model{'s' * (models > 1)}, measured with"]
    lines += [f"layerscope and written by version {VERSION}.", ""]
    lines += ["| model | kind | data | layers | measured | final norm | tokens |", "|---|---|---|---|---|---|---|"]
    for (_, model, kind), rows in table.groupby(["run", "model", "kind"], sort=False):
        cells = [model, kind, _some(rows["data"]), f"{rows['layer'].min()}–{rows['layer'].max()}", _some(rows["metric"])]
        cells += [_some(rows["final_norm"]), _some(rows["max_length"])]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    lines += ["", "## Use", "", "```python", "import pandas as pd", f'pd.read_parquet("{FILE}")', "```", ""]
    lines += [
        "With layerscope, beside the published results:",
        "",
        "```bash",
        "layerscope atlas compare Pythia-410m --run FOLDER",
        "```",
        "",
    ]
    lines += ["## Columns", "", "One row is one value at one layer. Two values compare only where their conventions agree:"]
    lines += ["the columns below, and for every setting `facts`.", ""]
    lines += ["| column | what |", "|---|---|"]
    lines += [f"| `{name}` | {column.meaning} |" for name, column in COLUMNS.items()]
    return "\n".join(lines) + "\n"


_SIZES = [("0", "1K", 1000), ("1K", "10K", 10_000), ("10K", "100K", 100_000), ("100K", "1M", 1_000_000)]


def _some(column: pd.Series) -> str:
    names = [str(value) for value in column.dropna().unique()]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "–"


def _cell(text: Any) -> str:
    return one_line(str(text)).replace("|", "\\|").replace("<", "&lt;")


def _quoted(text: str) -> str:
    return json.dumps(one_line(text), ensure_ascii=False)


# --- in ---


def load_overlays(path: str | Path) -> list[Overlay]:
    """What may stand beside the published results, of the folder of a run or of exported results."""
    folder = Path(path)
    if not exists(folder / FILE):
        return [load_overlay(folder)]
    out = []
    for (model, kind, facts), rows in read_results(folder).groupby(["model", "kind", "facts"], sort=False):
        name = clean_name(f"{folder.resolve().name}:{model}")
        with explain_damage(f"the {clean_name(str(kind))} of {name}"):
            manifest = clean_values(parse_json(str(facts), f"the facts of {name}"))
            manifest["model"]["name"] = name
            out.append(_overlay(str(kind), rows.reset_index(drop=True), manifest))
    return out


def _overlay(kind: str, rows: pd.DataFrame, manifest: dict[str, Any]) -> Overlay:
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Profile

    if kind == "profile":
        return overlay_metrics(Profile(rows, manifest, None), whose="its")
    if kind == "evaluation":
        scores = rows.rename(columns={"value": "score", "data": "task"})
        return overlay_scores(Evaluation(scores, pd.DataFrame(), manifest), whose="its")
    return Overlay(manifest["model"]["name"], differs={"probes": ["none of this kind were published"]}, whose="its")


def read_results(folder: str | Path) -> pd.DataFrame:
    """The table of an exported folder: its digest compared with the card's; no more is read than a result can be."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = Path(folder)
    file, digest = place / FILE, digest_of(place)
    if digest is None:
        raise DataError(
            f"{place / CARD} does not tell the digest of {FILE} (`results_sha256`). Export or download the folder again."
        )
    with atomic.explained(file):
        if sha256_of(file) != digest:
            raise DataError(f"{file} is not what its card describes: the digest differs. Download the folder again.")
        try:
            with pq.ParquetFile(file, read_dictionary=_TEXT) as parquet:
                if parquet.metadata.num_rows > _MOST_ROWS:
                    raise DataError(f"{file} declares {parquet.metadata.num_rows:,} rows, more than is read.")
                check_parquet(parquet, file)
                read = parquet.read()
            # a text that many rows share is in the file once, and in the table once for each
            shared = [part for column in read.columns for part in column.chunks if pa.types.is_dictionary(part.type)]
            if sum(map(weight, shared)) > _MOST_UNPACKED:
                raise DataError(f"{file} declares texts of more than {_MOST_UNPACKED:,} bytes, more than is read.")
            table = read.to_pandas()
            packed = _packed(with_added(table, COLUMNS.values()))
        except (pa.ArrowException, LookupError, ValueError, TypeError, OverflowError, MemoryError, OSError) as error:
            raise DataError(f"{file} is not a file that `layerscope atlas export` wrote: {error}. Download it again.") from error
    table = packed.to_pandas().replace([math.inf, -math.inf], math.nan)  # no run writes them, and nothing can draw them
    return table.dropna(subset=["model", "kind", "facts", "layer", "depth"])


def digest_of(folder: Path) -> str | None:
    """The digest that a folder's data card tells; None where it tells none."""
    card = folder / CARD
    if not exists(card) or not card.is_file():
        return None
    with card.open("rb") as stream:
        text = stream.read(1 << 20).decode("utf-8", errors="replace")
    told = re.search(r"^results_sha256:[ \t]*[\"']?([0-9a-f]{64})\b", text, re.MULTILINE)
    return told[1] if told else None
