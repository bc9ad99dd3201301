"""What studies do with a model besides profiling it: its tokens, results kept in the work folder, scores on tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.evaluation.job import evaluate
from layerscope.evaluation.run import Evaluation
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.store import checked
from layerscope.studies.shared.models import Request, folder_name


def most_tokens(request: Request, model: LoadedModel) -> int:
    """How many tokens of a text are read: what was asked for, and no more than the model takes."""
    return request.max_length if model.max_length is None else min(request.max_length, model.max_length)


def kept_arrays(
    file: Path, measure: Callable[[], dict[str, np.ndarray]], bar: Progress | None = None, units: int = 0
) -> dict[str, np.ndarray]:
    """What `measure` gives, from the file if it is there; the bar then moves by what need not be done again."""
    stored = checked.read_or_discard(file, checked.read_arrays)
    if stored is None:
        stored = measure()
        checked.write_arrays(file, stored)
    elif bar is not None:
        bar.advance(units)
    return stored


def score_tasks(request: Request, model: LoadedModel, label: str, **more: Any) -> tuple[Evaluation, list[str]]:
    """Scores of every layer on the tasks that the options name, and which of them could not be scored."""
    options = request.options
    evaluation = evaluate(
        model,
        options["tasks"],
        out=request.work / f"{folder_name(label)}-scores",
        readouts=[DEFAULT_READOUT],
        data_dir=options["data_dir"] or None,
        sample=options["items"] or None,
        max_length=request.max_length,
        seed=request.seed,
        batch_size=request.batch_size,
        offline=request.offline,
        progress=False,
        **more,
    )
    return evaluation, [f"{one['task']} could not be scored: {one['reason']}" for one in evaluation.failed]
