"""Labeled tasks: which there are, where their data come from, and mteb's task objects with the data
in them."""

from __future__ import annotations

from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.evaluation.tasks.mteb_tasks import reseed
from layerscope.evaluation.tasks.resolve import PAPER, SMALL, resolve_tasks
from layerscope.evaluation.tasks.spec import TaskSpec

__all__ = ["PAPER", "SMALL", "TASKS", "TaskSpec", "reseed", "resolve_tasks"]
