"""Scoring of whole tasks on a device, which another package offers with an entry point of the group
`layerscope.scorers`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from layerscope import accelerator
from layerscope.core.plugins import entry_points
from layerscope.extras import missing

if TYPE_CHECKING:
    import torch

    from layerscope.evaluation.results import ScoreResult
    from layerscope.evaluation.scoring import OpenTask, ScoreJob, ScoringContext

__all__ = ["LeftToMteb"]

GROUP = "layerscope.scorers"


class LeftToMteb(Exception):
    """A task whose scores only mteb can compute; the message says why."""


class Scorer(Protocol):
    """Scores all layers and readouts of a task together, on a device."""

    stopped: threading.Event
    """Set by another thread: no more layers are begun."""

    def __init__(self, device: torch.device) -> None: ...

    @staticmethod
    def texts_of(task: Any) -> list[str]:
        """Return every text that a loaded task encodes, in mteb's order."""

    def score(
        self, context: ScoringContext, task: OpenTask, jobs: Sequence[ScoreJob]
    ) -> Iterator[ScoreResult]:
        """Write and yield the results of jobs of one task; raise `LeftToMteb` before the first."""

    def facts(self, results: Sequence[ScoreResult]) -> dict[str, Any]:
        """Return facts about all results, for the manifest."""


def find_scorer() -> type[Scorer]:
    """Return the installed scorer; an error that names the extra where there is none, or where it
    does not fit this version."""
    for point in entry_points(GROUP):
        try:
            scorer: type[Scorer] = point.load()
        except ImportError:
            continue
        accelerator.installed()
        return scorer
    raise missing("device scoring")
