"""Every statement on random cases and by climbing."""

from __future__ import annotations

from layerscope.progress import Progress
from layerscope.studies.inequalities.base import Trial, climb, try_random
from layerscope.studies.inequalities.catalogue import STATEMENTS


def try_all(matrices: int, starts: int, steps: int, seed: int, bar: Progress) -> list[Trial]:
    """All trials, statement by statement and kind by kind."""
    trials = []
    bar.begin("theorems|kinds of case", sum(len(s.kinds) * (1 + (s.nudge is not None)) for s in STATEMENTS))
    for statement in STATEMENTS:
        each = max(1, -(-matrices // (statement.every * len(statement.kinds))))
        for kind in statement.kinds:
            trials.append(try_random(statement, kind, each, seed))
            bar.advance(1)
            if statement.nudge is not None:
                if starts and steps:
                    trials.append(climb(statement, kind, starts, steps, seed))
                bar.advance(1)
    return trials
