"""What `improve` costs beside the passes of its templates: CPU seconds of every stage, and the
ratio to the bare passes.

The bare passes run the model on the same texts under the same templates, in the same batches, with
nothing captured, judged or written. Everything is counted in CPU seconds of this process and its
children, so that a busy machine does not matter much.

    python benchmarks/improve_cost.py                   # 250 of TREC's questions: about ten minutes on one slow core
    python benchmarks/improve_cost.py --texts 1000
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import layerscope.improving.job
from layerscope.core.templates import get_template
from layerscope.evaluation.encode import TextEncoder
from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.improving import improve
from layerscope.improving.fitting import Taught
from layerscope.improving.judging import Panel
from layerscope.models import load


def cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Stages:
    """A progress that notes when each stage begins, in CPU seconds, and when the first of them
    does, in seconds."""

    def __init__(self) -> None:
        self.start, self.first = time.perf_counter(), 0.0
        self.began: list[tuple[str, float]] = [("before the first pass", cpu())]

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A stage."""
        self.first = self.first or time.perf_counter() - self.start
        self.began.append((label.partition("|")[0].split("/")[0], cpu()))

    def advance(self, units: int) -> None:
        """Nothing."""


HEADS = {
    "preparing heads at all layers": (layerscope.improving.job, "fit_heads"),
    "fitting and judging heads at all layers": (Panel, "judge_heads"),
    "fitting the head that is exported": (Taught, "head"),
}
"""What is done for heads once all texts are read, and where."""


def counted(spent: dict[str, float], label: str, place: Any, name: str) -> None:
    """Count the CPU seconds of a function or a method from now on."""
    given: Callable[..., Any] = getattr(place, name)

    def run(*args: Any, **options: Any) -> Any:
        start = cpu()
        try:
            return given(*args, **options)
        finally:
            spent[label] += cpu() - start

    setattr(place, name, run)


def bare_passes(model, texts: list[str], templates: dict[str, int], most: int) -> float:  # type: ignore[no-untyped-def]
    """CPU seconds of the passes alone; `templates` says how many of the texts are read under each.

    At most so many texts of a template are run, spread over their lengths; the time of the others
    follows from their tokens.
    """
    spent = 0.0
    for name, count in templates.items():
        encoder = TextEncoder(model, get_template(name), [], [], 64)
        ids = sorted((one.ids for one in encoder.read(texts[:count])), key=len)
        some = ids[:: -(-len(ids) // most)]
        start = cpu()
        with torch.inference_mode():
            encoder.runner.run(some, lambda numbers, batch: model.run(batch))
        spent += (cpu() - start) * sum(map(len, ids)) / sum(map(len, some))
    return spent


def main() -> None:
    """Run once and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=250)
    parser.add_argument(
        "--bare",
        type=int,
        default=250,
        help="at most so many texts under each template in the bare passes",
    )
    given = parser.parse_args()
    questions = [row["text"] for row in TASKS.get("TrecQuestions").splits()["train"]]
    model = load(given.model)
    spent = dict.fromkeys(HEADS, 0.0)
    for label, place in HEADS.items():
        counted(spent, label, *place)
    with tempfile.TemporaryDirectory() as folder:
        stages, start, clock = Stages(), cpu(), time.perf_counter()
        out, store = Path(folder) / "better", Path(folder) / "store"
        result = improve(
            model,
            questions,
            out=out,
            store=store,
            sample=given.texts,
            max_length=64,
            center_on="sample",
            progress=stages,
        )
        total, seconds = cpu() - start, time.perf_counter() - clock
    texts = list((result.sampled or {})["texts"])
    screened = list(result.manifest["evidence"]["screened"])
    chosen = {str(name).split("/")[0] for name in result.table["readout"]}
    names = screened or sorted(chosen)
    bare = bare_passes(
        model, texts, {name: len(texts) if name in chosen else 200 for name in names}, given.bare
    )
    ends = [*(when for _, when in stages.began[1:]), start + total]
    print(
        f"{result.choice.readout} at layer {result.choice.layer}; first stage after {stages.first:.0f} s"
    )
    for (label, when), end in zip(stages.began, ends, strict=True):
        print(f"{end - when:8.1f} s CPU  {label}")
    for label, seconds_of in spent.items():
        print(f"{seconds_of:8.1f} s CPU  of these: {label}")
    print(f"{sum(spent.values()):8.1f} s CPU  heads beyond the readings, for {len(texts):,} texts")
    print(
        f"{total:8.1f} s CPU  in all, {total / bare:.2f} × the bare passes ({bare:.1f} s); {seconds:.0f} s by the clock"
    )


if __name__ == "__main__":
    main()
