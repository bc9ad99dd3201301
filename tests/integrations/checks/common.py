"""What every check needs; only numpy, for it runs in the environments of other programs."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

WORK = Path(sys.argv[1])
TEXTS = json.loads((WORK / "texts.json").read_text(encoding="utf-8"))
FOLDER = WORK / "folders" / "minilm"


def wanted(name: str = "minilm") -> np.ndarray:
    """What layerscope captures in the whole model."""
    return np.load(WORK / f"{name}.npy")


def distance(given: np.ndarray, expected: np.ndarray) -> float:
    """The largest cosine distance of a row to the row it should be."""
    parts = [
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (np.asarray(given, float), np.asarray(expected, float))
    ]
    return float((0.5 * ((parts[0] - parts[1]) ** 2).sum(1)).max())


def told(package: str, compared: str, difference: float) -> None:
    """The row of the table."""
    print(json.dumps({"version": version(package), "compared": compared, "difference": difference}))
