"""LanceDB with the table that `embed` wrote: a search returns each text for its own vector."""

from __future__ import annotations

import tempfile

import lancedb
import numpy as np
import pyarrow.parquet as pq
from common import TEXTS, WORK, distance, told, wanted

table = pq.read_table(WORK / "vectors.parquet")
with tempfile.TemporaryDirectory() as place:
    stored = lancedb.connect(place).create_table("texts", table)
    found = [
        stored.search(vector).metric("cosine").limit(1).to_list()[0]
        for vector in wanted().astype(np.float32)
    ]
assert [row["text"] for row in found] == TEXTS
told(
    "lancedb",
    f"the nearest of {len(found)} texts",
    distance(np.array([row["vector"] for row in found]), wanted()),
)
