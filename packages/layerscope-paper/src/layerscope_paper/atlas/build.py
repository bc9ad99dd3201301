"""How the shipped tables were made: `python -m layerscope_paper.atlas.build DIR` packs the tidy tables
in DIR into `atlas/data/`.

DIR holds `mteb_layer_scores.parquet`, `layer_metrics.parquet`, `vision_probe.parquet`,
`task_dataset.csv` and `problem_files.csv`. Every value, column and row is kept, in float64; only
the encoding changes (dictionary-coded text, zstd). `SOURCE.md` beside them is written by hand and
says where they come from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

DATA = Path(__file__).with_name("data")
TABLES = {
    "mteb_layer_scores.parquet": "scores",
    "layer_metrics.parquet": "metrics",
    "vision_probe.parquet": "vision",
    "task_dataset.csv": "tasks",
    "problem_files.csv": "problems",
}


def build(source: Path, target: Path = DATA) -> dict[str, int]:
    """Write every table of `source` to `target`; the size in bytes of each file written."""
    target.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for file, name in TABLES.items():
        path = source / file
        table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        for column in table.columns:
            if pd.api.types.is_string_dtype(table[column]):
                table[column] = table[column].astype("category")
        written = target / f"{name}.parquet"
        # the bytes of floats, sorted by place, pack into three quarters of the space
        floats = [
            str(column) for column in table.columns if pd.api.types.is_float_dtype(table[column])
        ]
        others = [str(column) for column in table.columns if column not in floats]
        table.to_parquet(
            written,
            compression="zstd",
            compression_level=19,
            index=False,
            use_dictionary=others,
            use_byte_stream_split=floats,
        )
        sizes[written.name] = written.stat().st_size
    return sizes


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m layerscope_paper.atlas.build DIR")
    for file, size in build(Path(sys.argv[1])).items():
        print(f"{file}  {size:,} bytes")
