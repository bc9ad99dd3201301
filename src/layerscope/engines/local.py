"""The engine that is used unless another is asked for: this process."""

from __future__ import annotations

from collections.abc import Sequence

from layerscope.engines.base import Advance, Engine, Item, Result, Results, Work, nothing


class LocalEngine(Engine):
    """Does everything in this process, one item after the other."""

    name = "local"

    def run(self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = nothing) -> Results[Result]:
        """(number of an item, its result), in order."""
        if not items:
            return
        try:
            common = work.open()
            for i, item in enumerate(items):
                yield i, work.run(item, work.prepare(item), advance, common)
        finally:
            work.close()
