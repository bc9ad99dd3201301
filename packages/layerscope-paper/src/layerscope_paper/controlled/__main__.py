"""Train the controlled set, and save checkpoints that `layerscope-paper study checkpoints` reads.

python -m layerscope_paper.controlled build/controlled [--data movie-reviews] [--steps 1500]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from layerscope.data import load_corpus
from layerscope_paper.controlled import OBJECTIVES, Plan, read_texts, save, train

CHECKPOINTS = (0, 30, 125, 500, 1500)


def main(arguments: list[str] | None = None) -> None:
    """Train each objective; its folder holds `stepN` folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="movie-reviews")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=OBJECTIVES)
    for name in ("steps", "batch", "length", "width", "blocks", "heads", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Plan, name))
    options = vars(parser.parse_args(arguments))
    out = options.pop("out")
    objectives = options.pop("objectives")
    streams = read_texts(load_corpus(options.pop("data")).texts)
    plan = Plan(**options)
    for objective in objectives:

        def save_step(step: int, model: Any, loss: float, objective: str = objective) -> None:
            if step in (*CHECKPOINTS, plan.steps):
                save(model, streams.tokenizer, out / objective / f"step{step}")
                print(f"{objective}: step {step}, loss {loss:.3f}", flush=True)

        _, loss = train(objective, streams, plan, on_step=save_step)
        print(f"{objective}: held-out loss {loss:.3f} nats", flush=True)


if __name__ == "__main__":
    main()
