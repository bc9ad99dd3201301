"""A judge from another package: one class and an entry point."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.forking import run_python


def test_a_judge_from_another_package_is_known_and_judges(tmp_path: Path) -> None:
    package = tmp_path / "outside_judge.py"
    package.write_text(
        textwrap.dedent(
            '''
            import numpy as np
            from layerscope.selection.judges import Judgment

            class Deepest:
                """The deepest layer, always."""
                name, summary, views = "deepest", "the deepest layer", ()

                def judge(self, candidates, *, seed=0):
                    return Judgment(self.name, np.tile(np.array(candidates.layers, dtype=float), (len(candidates.readouts), 1)))
            '''
        )
    )
    facts = tmp_path / "outside_judge-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-judge\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[layerscope.judges]\ndeepest = outside_judge:Deepest\n")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from layerscope.core.readout import Readout
from layerscope.selection.judges import JUDGES
class Two:
    readouts, layers = [Readout()], [0, 1, 2]
print(JUDGES.get("deepest")().judge(Two()).best(), "agreement" in JUDGES)
"""
    ended = run_python(code, without=["layerscope"])
    assert ended.stdout.strip() == "(0, 2) True", ended.stderr
