"""Labelled tasks: which there are, where their data come from, and mteb's task objects with the data in them."""

from __future__ import annotations

from layerscope.evaluate.tasks.catalogue import fetch as fetch_task
from layerscope.evaluate.tasks.catalogue import tasks as catalogued_tasks
from layerscope.evaluate.tasks.info import reseed
from layerscope.evaluate.tasks.paper import PAPER_TASKS, PaperTask
from layerscope.evaluate.tasks.resolve import PRESETS, resolve_tasks
from layerscope.evaluate.tasks.spec import TaskSpec

__all__ = ["PAPER_TASKS", "PRESETS", "PaperTask", "TaskSpec", "catalogued_tasks", "fetch_task", "reseed", "resolve_tasks"]
