"""Train the controlled set: the same depth, width, text and steps with three objectives or
architectures.

(a) `ar`: an autoregressive transformer, (b) `mlm`: the same transformer from the same first weights
as a masked-language model, (c) `mamba`: a state-space model. Float16 checkpoints along the way,
held-out losses in log.csv.

    python examples/train_controlled_set.py --prepare build/controlled/text     # needs the package index, once
    python examples/train_controlled_set.py --text build/controlled/text --out
    build/controlled/trained

The second command needs no network: a few minutes on a large GPU; on a CPU use small --steps and
--batch. Where only small files come back from the GPU machine, --pack FOLDER [--part N] writes the
checkpoints as tar files and --unpack reads them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from controlled_set import architectures, packing, shipping, text
from controlled_set.training import Plan, train

ZOO = Path("packages/layerscope-zoo/src/layerscope_zoo/controlled")


def _arguments(given: list[str] | None) -> argparse.Namespace:
    default = Plan()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prepare",
        type=Path,
        metavar="FOLDER",
        help="fetch the reviews and write token ids and tokenizer there",
    )
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--text", type=Path, metavar="FOLDER", help="what --prepare wrote")
    parser.add_argument("--out", type=Path, default=Path("build/controlled/trained"))
    parser.add_argument(
        "--models", nargs="+", choices=architectures.NAMES, default=list(architectures.NAMES)
    )
    for name in ("steps", "batch", "length", "width", "blocks", "heads", "seed", "log_every"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    parser.add_argument("--learning-rate", type=float, default=default.learning_rate)
    parser.add_argument(
        "--masked",
        type=float,
        default=default.masked,
        help="share of tokens the masked model must guess",
    )
    parser.add_argument(
        "--checkpoints",
        type=int,
        nargs="*",
        default=list(default.checkpoints),
        help="steps; the last is always saved",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="all models at the same time, each in its own process",
    )
    parser.add_argument(
        "--pack", type=Path, metavar="FOLDER", help="also write the checkpoints as tar files there"
    )
    parser.add_argument(
        "--part", type=int, default=1, help="which part to pack, where one does not hold all"
    )
    parser.add_argument(
        "--unpack", type=Path, metavar="FOLDER", help="only unpack tar files from there into --out"
    )
    parser.add_argument(
        "--ship", type=Path, nargs="?", const=ZOO, metavar="FOLDER",
        help=f"copy the last checkpoints from --out there, with cards; {ZOO} where no folder is named",
    )  # fmt: skip
    return parser.parse_args(given)


def _train_together(options: argparse.Namespace, given: list[str]) -> None:
    """One child process per model: a small model leaves most of a large GPU idle."""
    kept = [word for word in given if word != "--together"]
    children = [
        subprocess.Popen([sys.executable, __file__, *kept, "--models", name, "--pack-none"])  # noqa: S603 - own arguments
        for name in options.models
    ]
    failed = [
        name for name, child in zip(options.models, children, strict=True) if child.wait() != 0
    ]
    if failed:
        print(f"failed: {', '.join(failed)}; what the others saved is kept", flush=True)


def main(given: list[str] | None = None) -> None:
    """The command line."""
    given = sys.argv[1:] if given is None else given
    nested = "--pack-none" in given  # a child of --together: its parent packs
    given = [word for word in given if word != "--pack-none"]
    options = _arguments(given)
    started = time.perf_counter()
    if options.prepare:
        text.prepare(options.prepare, options.vocabulary)
        found = text.read(options.prepare)
        print(
            f"{options.prepare}: {len(found.train):,} tokens to train on, {len(found.held_out):,} held out"
        )
    if options.unpack:
        packing.unpack(options.unpack, options.out)
    if options.text:
        torch.set_float32_matmul_precision("high")
        if options.together and not nested:
            _train_together(options, given)
        else:
            names = (
                "steps",
                "batch",
                "length",
                "width",
                "blocks",
                "heads",
                "seed",
                "log_every",
                "learning_rate",
                "masked",
            )
            plan = Plan(
                **{name: getattr(options, name) for name in names},
                checkpoints=tuple(options.checkpoints),
            )
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            streams = text.read(options.text)
            for name in options.models:
                train(
                    name,
                    streams,
                    plan,
                    options.out,
                    device,
                    say=lambda line: print(line, flush=True),
                )
    if options.pack and not nested:
        print(packing.pack(options.out, options.pack, options.part))
    if options.ship:
        print("\n".join(str(folder) for folder in shipping.ship(options.out, options.ship)))
    print(f"{time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
