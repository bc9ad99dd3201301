"""Fit the depth curves to the atlas and write them into the package: `python
benchmarks/fit_depth_curves.py [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from published_gains import Judged, as_dict, fit, judged_models

from layerscope.core.valley import deepest_share
from layerscope.selection import prior
from layerscope.selection.prior import FILE, Prior
from layerscope.store.atomic import write_text
from layerscope_paper.atlas.evidence import published_evidence


def valley_depths(models: tuple[Judged, ...] | list[Judged]) -> dict[str, float]:
    """The relative depth of each model's valley, on wikitext. Scores play no part in it."""
    depths = {}
    for model in models:
        curve = published_evidence(model.model).curve("prompt_entropy")
        assert curve is not None, f"the atlas has prompt entropy of {model.model} at every layer"
        depths[model.model] = float(deepest_share(curve.value))
    return depths


def fit_atlas() -> Prior:
    """The curves of every judged model of the atlas."""
    models = judged_models()
    return fit(models, valley_depths(models))


def main() -> int:
    """Write the file, or with `--check` say whether it is what the atlas gives."""
    file = Path(prior.__file__).with_name(FILE)
    text = json.dumps(as_dict(fit_atlas()), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        same = file.is_file() and file.read_text(encoding="utf-8") == text
        print(f"{file.name} {'is' if same else 'is NOT'} what the atlas gives.")
        return 0 if same else 1
    write_text(file, text)
    print(f"written: {file} ({len(text):,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
