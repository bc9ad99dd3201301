"""Labels of other texts than those that models are compared on."""

import csv
from pathlib import Path

with Path("some.csv").open("w", encoding="utf-8", newline="") as stream:
    csv.writer(stream).writerows(
        [["text", "label"], *([f"{text} indeed", str(i % 2)] for i, text in enumerate(texts[:40]))]  # noqa: F821
    )
