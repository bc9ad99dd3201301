"""Train a supervised ViT, a masked autoencoder and an autoregressive ViT of one size, on the same
images, for the same steps.

    python examples/train_vision_set.py --prepare images.npz                       # fetch the images (needs network)
    python examples/train_vision_set.py --images images.npz --out OUT --probe      # train on a GPU, read every layer
    python examples/train_vision_set.py --data digits --batch 64 --out OUT --probe # on a CPU, in
    minutes

What is left in OUT: models.zip (a folder per model: config.json, model.safetensors in half
precision, preprocessor_config.json, as layerscope.load reads them), training.json, and with
--probe: probe.csv, items.npz (the class that every probe names for every test image) and
profile.csv. All three share the trunk's size, images, augmentation, optimizer, batch and number of
steps; they differ in what they are asked for, and in a small part that is thrown away after
training (classifier, decoder, pixel head).
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from vision_set.images import DATA, PATCH, Images, fetch, read, write
from vision_set.loop import Recipe, train
from vision_set.objectives import OBJECTIVES, Size
from vision_set.reading import PROBES, probe_model, profile_model
from vision_set.shipping import ship

from layerscope_media import PixelPreparation

ZOO = Path("packages/layerscope-zoo/src/layerscope_zoo/vision_set")
STEPS = {"fashion-mnist": 3000, "digits": 1500}
BATCH = {"fashion-mnist": 1024, "digits": 256}


def main(given: list[str] | None = None) -> None:
    """Prepare, or train and read."""
    args = _arguments(given)
    if args.prepare:
        sets = [fetch(name) for name in args.data]
        write(args.prepare, sets)
        told = ", ".join(f"{s.name} {len(s.train)} + {len(s.test)}" for s in sets)
        print(f"{args.prepare}: {told}, {args.prepare.stat().st_size / 1e6:.1f} MB")
        return
    if args.ship:
        for out in args.ship:
            for folder in ship(out, args.out or ZOO):
                print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")
        return
    args.out = args.out or Path("vision-set")
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    tables: dict[str, list[pd.DataFrame]] = {"probe": [], "profile": []}
    named: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {
        "environment": _environment(device),
        "settings": _settings(args),
        "models": {},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.data:
            images = read(args.images, name) if args.images else fetch(name)
            images = images.part(args.limit) if args.limit else images
            for objective in args.objectives:
                folder = Path(scratch) / f"{name}-{objective}"
                facts["models"][folder.name] = _train(args, images, objective, folder, device)
                if args.probe:
                    _read(args, images, folder, device, tables, named, facts["models"][folder.name])
                _write(
                    args.out, Path(scratch), facts, tables, named
                )  # after each model: a stop loses one at most
    print(f"written to {args.out}: {', '.join(sorted(p.name for p in args.out.iterdir()))}")


def _train(
    args: argparse.Namespace, images: Images, objective: str, folder: Path, device: torch.device
) -> dict[str, Any]:
    patch = args.patch or PATCH[images.name]
    size = Size(images.size, patch, len(images.classes), args.width, args.blocks, args.heads)
    recipe = Recipe(
        args.steps or STEPS[images.name],
        args.batch or BATCH[images.name],
        args.rate,
        seed=args.seed,
    )
    print(f"{folder.name}: {recipe.steps} steps of {recipe.batch} images on {device}", flush=True)
    trained, facts = train(lambda: OBJECTIVES[objective](size), images, recipe, device)
    trained.save(folder)
    mean, std = images.moments()
    PixelPreparation((images.size, images.size), 1, (mean,), (std,)).save_pretrained(folder)
    return {
        **facts,
        "size": vars(size),
        "recipe": vars(recipe),
        "pixels": {"mean": mean, "std": std},
    }


def _read(
    args: argparse.Namespace,
    images: Images,
    folder: Path,
    device: torch.device,
    tables: dict[str, list[pd.DataFrame]],
    named: dict[str, np.ndarray],
    facts: dict[str, Any],
) -> None:
    data, _, objective = folder.name.rpartition("-")
    keys = {"data": data, "objective": objective}
    clock = time.perf_counter()
    run = probe_model(folder, images, device, args.probes, epochs=args.probe_epochs, seed=args.seed)
    tables["probe"].append(run.table.assign(**keys))
    for probe in run.probes:
        mine = run.items[run.items["probe"] == probe]
        named[f"{folder.name}/{probe}"] = mine.pivot(
            index="layer", columns="item", values="predicted"
        ).to_numpy(np.uint8)
    named[f"{data}/labels"] = images.test_labels.astype(np.uint8)
    facts["probe"] = {
        **run.summary()["probes"],
        "seconds": run.manifest["seconds"],
        "warnings": run.manifest["warnings"],
    }
    facts["probe_conventions"] = run.manifest["conventions"]
    for probe, found in run.summary()["probes"].items():
        best, chosen = found["best_layer"], found["chosen_layer"]
        print(
            f"  {probe}: best {best} {found['best']:.4f}, chosen {chosen} {found['chosen']:.4f}, last {found['last']:.4f}",
            flush=True,
        )
    facts["probe_seconds"] = time.perf_counter() - clock
    clock = time.perf_counter()
    if args.profile:
        try:
            tables["profile"].append(
                profile_model(folder, images, device, args.profile).assign(**keys)
            )
        except Exception as error:  # what was trained and probed must not be lost over it
            facts["profile_failed"] = f"{type(error).__name__}: {error}"
            print(f"  no profile: {facts['profile_failed']}", flush=True)
    facts["profile_seconds"] = time.perf_counter() - clock
    print(
        f"  probes {facts['probe_seconds']:.1f} s, profile {facts['profile_seconds']:.1f} s",
        flush=True,
    )


def _write(
    out: Path,
    scratch: Path,
    facts: dict[str, Any],
    tables: dict[str, list[pd.DataFrame]],
    named: dict[str, np.ndarray],
) -> None:
    with zipfile.ZipFile(out / "models.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(scratch.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(scratch))
    (out / "training.json").write_text(
        json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8"
    )
    for name, parts in tables.items():
        if parts:
            pd.concat(parts, ignore_index=True).to_csv(out / f"{name}.csv", index=False)
    if named:
        with open(out / "items.npz", "wb") as stream:
            np.savez_compressed(stream, **named)  # type: ignore[arg-type]


def _environment(device: torch.device) -> dict[str, Any]:
    import transformers

    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    return {
        "device": name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()
    }


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument(
        "--prepare",
        type=Path,
        metavar="FILE",
        help="fetch the images, write them to one file, and stop",
    )
    parser.add_argument(
        "--ship",
        type=Path,
        nargs="+",
        metavar="OUT",
        help=f"unpack the models of finished runs into --out ({ZOO} where it is not given), and stop",
    )
    parser.add_argument(
        "--images", type=Path, metavar="FILE", help="read the images from such a file"
    )
    parser.add_argument(
        "--data", type=names, default=list(DATA), help=f"{','.join(DATA)}: one or both"
    )
    parser.add_argument("--objectives", type=names, default=list(OBJECTIVES))
    parser.add_argument("--out", type=Path, help="default: vision-set")
    parser.add_argument("--steps", type=int, help=f"default: {STEPS}")
    parser.add_argument("--batch", type=int, help=f"default: {BATCH}")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--patch", type=int, help=f"pixels along a patch's side; default: {PATCH}")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="only the first N images of each part")
    parser.add_argument("--device")
    parser.add_argument("--probe", action="store_true", help="read every layer afterwards")
    parser.add_argument("--probes", type=names, default=list(PROBES))
    parser.add_argument("--probe-epochs", type=int, default=15)
    parser.add_argument(
        "--profile",
        type=int,
        default=1000,
        metavar="N",
        help="test images to measure with every metric; 0: none",
    )
    args = parser.parse_args(given)
    for kind, wanted, valid in (
        ("data", args.data, DATA),
        ("objective", args.objectives, OBJECTIVES),
    ):
        for name in wanted:
            if name not in valid:
                parser.error(f"unknown {kind} {name!r}; valid: {', '.join(valid)}")
    return args


if __name__ == "__main__":
    main()
