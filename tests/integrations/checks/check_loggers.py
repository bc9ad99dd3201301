"""A profile and an improvement logged with `log=NAME`, and read back from what the program keeps:
the same numbers, no texts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import TEXTS, WORK, told

NAME = sys.argv[2]
PLACE = WORK / f"logged-{NAME}"
shutil.rmtree(PLACE, ignore_errors=True)
PLACE.mkdir(parents=True)
os.chdir(PLACE)
os.environ |= {
    "WANDB_MODE": "offline", "WANDB_DIR": str(PLACE), "WANDB_SILENT": "true", "TRACKIO_DIR": str(PLACE / "trackio"),
    "MLFLOW_TRACKING_URI": f"sqlite:///{PLACE / 'mlflow.db'}",
}  # fmt: skip

import layerscope  # noqa: E402 - with these settings


def wandb_records(raw: bytes) -> Iterator[bytes]:
    """The records of an offline run's file: a LevelDB log in blocks of 32 KiB, after seven bytes of
    its own."""
    place, block, parts = 7, 2**15, b""
    while place + 7 <= len(raw):
        if block - place % block < 7:  # too little room for a record's head: the next block
            place += block - place % block
            continue
        length, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        parts += raw[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield parts
            parts = b""


def wandb_rows() -> list[dict[str, float]]:
    from wandb.proto import wandb_internal_pb2

    found: list[dict[str, float]] = []
    for file in sorted(PLACE.glob("wandb/offline-run-*/*.wandb")):
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            found.append(
                {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
            )
    return [{**row, "step": row[axis]} for row in found for axis in row if axis.endswith("/step")]


def mlflow_rows() -> list[dict[str, float]]:
    from mlflow import MlflowClient

    client = MlflowClient()
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return [
        {"step": point.step, name: point.value}
        for run in runs
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]


def trackio_rows() -> list[dict[str, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    runs = SQLiteStorage.get_runs("layerscope")
    return [row for run in runs for row in SQLiteStorage.get_logs("layerscope", run)]


class Kept:
    """What a log is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows

    def close(self) -> None:
        """Nothing to do."""


kept = Kept()
layerscope.profile(
    "minilm-l6",
    TEXTS,
    metrics=["prompt_entropy", "effective_rank"],
    log=[NAME, kept],
    progress=False,
)
more = [*TEXTS, *(f"{text} Again." for text in TEXTS)]
layerscope.improve(
    "smollm2-135m", more, templates=["one-word"], judge="none", log=[NAME, kept], progress=False
)
wanted = {
    (row["tag"].replace("{", "_").replace("}", "_"), int(row["step"])): row["value"]
    for row in kept.rows
}
finite = {key: value for key, value in wanted.items() if value == value}
assert len(finite) > 50, len(finite)
for _ in range(20):  # a program may still be writing
    found = {"wandb": wandb_rows, "mlflow": mlflow_rows, "trackio": trackio_rows}[NAME]()
    by_name = {(name, int(row["step"])): value for row in found for name, value in row.items()}
    missing = set(finite) - set(by_name)
    if not missing:
        break
    time.sleep(0.5)
assert not missing, sorted(missing)[:5]
far = max(abs(by_name[key] - value) / max(1e-12, abs(value)) for key, value in finite.items())
texts = [text.encode() for text in TEXTS if len(text) > 20]
leaked = [
    file
    for file in Path(PLACE).rglob("*")
    if file.is_file()
    for text in texts
    if text in file.read_bytes()
]
assert not leaked, leaked
package = {"mlflow": "mlflow-skinny"}.get(NAME, NAME)
told(
    package,
    f"{len(finite)} numbers of a profile and an improvement, read back (largest relative difference)",
    far,
)
