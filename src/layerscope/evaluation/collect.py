"""Which texts the tasks need, before anything is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from layerscope.errors import LayerscopeError
from layerscope.evaluation.score import quiet_mteb, texts_file
from layerscope.evaluation.tasks import TaskSpec
from layerscope.progress import Progress
from layerscope.store import RunFolder, atomic
from layerscope.store.embeddings import text_key


class Collected(NamedTuple):
    """By task: its texts and its facts; and the tasks that could not be read, with the reason."""

    texts: dict[str, list[str]]
    facts: dict[str, Any]
    failed: list[dict[str, str]]


def collect(specs: Sequence[TaskSpec], folder: RunFolder, bar: Progress) -> Collected:
    """The texts each task encodes, found out by letting it encode them with a model that only listens."""
    import mteb

    from layerscope.evaluation.tasks import reseed
    from layerscope.evaluation.views import TextCollector

    quiet_mteb()
    bar.begin("reading tasks|tasks", len(specs))
    texts: dict[str, list[str]] = {}
    facts: dict[str, Any] = {}
    failed: list[dict[str, str]] = []
    for spec in specs:
        try:
            task = spec.load()
            listener = TextCollector()
            reseed(task)
            mteb.evaluate(listener, task, cache=None, show_progress_bar=False, co2_tracker=False)
            texts[spec.name], facts[spec.name] = list(listener.texts), spec.facts(task)
        except Exception as error:
            failed.append({"task": spec.name, "reason": f"{type(error).__name__}: {error}"})
            continue
        finally:
            bar.advance(1)
        keys = np.frombuffer(b"".join(text_key(t) for t in texts[spec.name]), dtype=np.uint8).reshape(-1, 32)
        atomic.write_array(texts_file(folder.path, spec.name), keys)
    if not texts:
        raise LayerscopeError(f"no task could be read: {failed[0]['task']}: {failed[0]['reason']}")
    return Collected(texts, facts, failed)
