"""The folder that the page embeds with, and labels of other texts than those that it compares on."""

import csv
from pathlib import Path

import layerscope

layerscope.export("smollm2-135m", -1, out="better")

with Path("some.csv").open("w", encoding="utf-8", newline="") as stream:
    csv.writer(stream).writerows(
        [["text", "label"], *([f"{text} indeed", str(i % 2)] for i, text in enumerate(texts[:40]))]  # noqa: F821
    )
