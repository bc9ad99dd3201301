"""Trained models as folders of the package: weights, settings, a marker with their sha256, and a
README."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

LICENSE = "Apache-2.0"


def ship(out: Path, target: Path) -> list[Path]:
    """Unpack the models of one run of `train_vision_set.py` into `target/<objective>`."""
    facts: dict[str, Any] = json.loads((out / "training.json").read_text(encoding="utf-8"))
    written = []
    with zipfile.ZipFile(out / "models.zip") as archive:
        for name, told in facts["models"].items():
            data, _, objective = name.rpartition("-")
            folder = target / objective
            folder.mkdir(parents=True, exist_ok=True)
            for file in ("config.json", "model.safetensors", "preprocessor_config.json"):
                (folder / file).write_bytes(archive.read(f"{name}/{file}"))
            weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
            marker = {
                "name": f"vision-{objective}",
                "title": f"vision set, {objective}",
                "version": f"step{told['recipe']['steps']}",
                "license": LICENSE,
                "quantization": None,
                "weights_sha256": weights,
            }
            (folder / "layerscope.json").write_text(
                json.dumps(marker, indent=2) + "\n", encoding="utf-8"
            )
            (folder / "README.md").write_text(
                _readme(objective, data, told, facts), encoding="utf-8"
            )
            written.append(folder)
    return written


def _readme(objective: str, data: str, told: dict[str, Any], facts: dict[str, Any]) -> str:
    size, recipe, place = told["size"], told["recipe"], facts["environment"]
    own = told.get("test_accuracy_of_its_own_classifier")
    judged = (
        ""
        if own is None
        else f" Its own classifier is right on {100 * own:.1f} % of the test images."
    )
    side = f"{size['image']} × {size['image']}"
    return f"""# vision-{objective}

One of three image models of one size that differ in what they were trained for (`supervised`, `mae`, `ar`), for controlled
comparisons, not for use on its own. Trained by `examples/train_vision_set.py` on {data}:
{recipe["steps"]} steps of {recipe["batch"]} images, learning rate {recipe["rate"]:g}, seed {recipe["seed"]},
on {place["device"]} (torch {place["torch"]}, transformers {place["transformers"]}).

{size["blocks"]} blocks, width {size["width"]}, {size["heads"]} heads, {side} gray pixels in patches of {size["patch"]};
{told["trunk_parameters"]} parameters, float16. Loss at the end: {told["losses"][-1][1]:.4f}.{judged}

License: {LICENSE}. The images are Fashion-MNIST's (Xiao, Rasul & Vollgraf 2017, MIT) and not part of this folder.
"""
