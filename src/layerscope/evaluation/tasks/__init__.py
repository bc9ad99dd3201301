"""Labeled tasks: which there are, where their data come from, and mteb's task objects with the data
in them."""

from __future__ import annotations

from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.evaluation.tasks.mteb_tasks import reseed
from layerscope.evaluation.tasks.resolve import PAPER, SMALL, TaskSpec, resolve_tasks

__all__ = ["PAPER", "SMALL", "TASKS", "TaskSpec", "reseed", "resolve_tasks"]
