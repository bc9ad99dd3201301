"""DuckDB on the file that `embed` wrote: its vectors, and the nearest rows by its own cosine."""

from __future__ import annotations

import duckdb
import numpy as np
from common import TEXTS, WORK, distance, told, wanted

file = str(WORK / "vectors.parquet")
width = wanted().shape[1]
rows = duckdb.sql(f"SELECT text, vector FROM '{file}'").fetchall()
assert [row[0] for row in rows] == TEXTS
asked = f"array_cosine_similarity(vector::FLOAT[{width}], (SELECT vector::FLOAT[{width}] FROM '{file}' LIMIT 1))"
nearest = duckdb.sql(f"SELECT text FROM '{file}' ORDER BY {asked} DESC LIMIT 1").fetchall()
assert nearest[0][0] == TEXTS[0]
told(
    "duckdb",
    f"a search by array_cosine_similarity, {len(rows)} texts",
    distance(np.array([row[1] for row in rows]), wanted()),
)
