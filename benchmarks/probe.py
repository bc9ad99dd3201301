"""What probing all layers together costs against probing the last layer alone: the states and the
training of the probes.

Both ways run the whole model once over the same images (the last layer needs every block), keep the
states they read in memory, try three learning rates for 3 epochs each and train with the best of
them; nothing stops early, so that both do all the work. The runs alternate and the medians are
compared. The model is a ViT with random weights: its cost does not depend on them.

    python benchmarks/probe.py                           # ViT-Ti's shape at 64 × 64 pixels, every kind of probe
    python benchmarks/probe.py --shape s --probes attention --epochs 50
    python benchmarks/probe.py --against-one-by-one      # also: every layer by itself, one after the other
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from layerscope.data import LabeledItems
from layerscope.models import LoadedModel, wrap
from layerscope.probing.job import ProbeJob
from layerscope.probing.training import ProbeRecipe, probes
from layerscope.progress import Silent

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from vision_set.reading import PixelSource

WANTED = 2.0
SHAPES = {  # width, heads, pixels, patch: DeiT's names for the widths
    "small-set": (64, 4, 28, 4),
    "ti": (192, 3, 64, 8),
    "s": (384, 6, 112, 16),
    "b": (768, 12, 224, 16),
}


def model_of(shape: str, device: torch.device) -> LoadedModel:
    """A ViT of 12 blocks with random weights."""
    from transformers import ViTConfig, ViTModel

    width, heads, pixels, patch = SHAPES[shape]
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=12,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=pixels,
        patch_size=patch,
    )
    return wrap(ViTModel(config, add_pooling_layer=False).to(device), name=f"vit-{shape}")


def examples_of(count: int, pixels: int, classes: int = 10) -> tuple[LabeledItems, torch.Tensor]:
    """Noise with a faint pattern per class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count)
    patterns = rng.standard_normal((classes, 3, pixels, pixels), dtype=np.float32)
    images = (
        rng.standard_normal((count, 3, pixels, pixels), dtype=np.float32) + 0.3 * patterns[labels]
    )
    names = tuple(str(c) for c in range(classes))
    return LabeledItems(
        "image", "noise", None, labels, names, f"noise-{count}-{pixels}"
    ), torch.from_numpy(images)


def measured(
    model: LoadedModel,
    data: tuple[LabeledItems, torch.Tensor],
    probe: str,
    recipe: ProbeRecipe,
    layers: list[int] | None,
    budget: int,
) -> dict[str, float]:
    """Seconds of one run: the states, the probes, and all of it."""
    examples, pixels = data
    job = ProbeJob(
        model, examples, PixelSource(model, pixels), [probe], recipe, layers, store_size=budget
    )
    start = time.perf_counter()
    run = job.run(Silent())
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    total = time.perf_counter() - start
    return {
        "states": run.manifest["seconds"]["states"],
        "probes": total - run.manifest["seconds"]["states"],
        "total": total,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="ti")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--probes", default=",".join(probes()))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--against-one-by-one", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    model, budget = model_of(args.shape, device), 16 * 2**30
    data = examples_of(args.images, SHAPES[args.shape][2])
    blocks = model.n_blocks
    print(f"{model.name}: {blocks} blocks, width {model.width}; {args.images} images, {args.epochs} epochs, {device}, "
          f"{torch.get_num_threads()} threads; seconds, median of {args.repeats}")  # fmt: skip
    print(f"{'':12}{'one layer':>26}{'all ' + str(blocks + 1) + ' layers':>26}")
    print(
        f"{'':12}{'states':>9}{'probes':>8}{'total':>9}{'states':>9}{'probes':>8}{'total':>9}{'ratio':>8}   wanted"
    )
    results = {}
    for probe in args.probes.split(","):
        recipe = ProbeRecipe(epochs=args.epochs, patience=args.epochs)
        ways: dict[str, list[int] | None] = {"one": [-1], "all": None}
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        measured(model, data, probe, ProbeRecipe(trial=1, epochs=1), [-1], budget)  # warm up
        for _ in range(args.repeats):
            for way, layers in ways.items():
                runs[way].append(measured(model, data, probe, recipe, layers, budget))
        middle = {
            way: {part: statistics.median(run[part] for run in held) for part in held[0]}
            for way, held in runs.items()
        }
        ratio = middle["all"]["total"] / middle["one"]["total"]
        results[probe] = {**middle, "ratio": ratio}
        cells = "".join(
            f"{middle[w]['states']:9.2f}{middle[w]['probes']:8.2f}{middle[w]['total']:9.2f}"
            for w in ways
        )
        print(
            f"{probe:12}{cells}{ratio:8.2f}   ≤ {WANTED:g} {'yes' if ratio <= WANTED else 'NO'}",
            flush=True,
        )
        if args.against_one_by_one:
            each = sum(
                measured(model, data, probe, recipe, [layer], budget)["total"]
                for layer in range(blocks + 1)
            )
            results[probe]["one_by_one"] = each
            print(
                f"{'':12}one by one: {each:.2f} s, {each / middle['all']['total']:.1f} × all together",
                flush=True,
            )
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
