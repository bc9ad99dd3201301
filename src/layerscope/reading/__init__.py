"""From items to reduced states: plan the items, read them ahead, run the model on batches, keep what a reduction keeps."""

from layerscope.reading.batches import BatchRunner
from layerscope.reading.plan import EarlyPlanner, Plan, choose_shard_size, make_plan, read_rows
from layerscope.reading.prefetch import Prefetcher

__all__ = ["BatchRunner", "EarlyPlanner", "Plan", "Prefetcher", "choose_shard_size", "make_plan", "read_rows"]
