"""Mutated inputs end in a result or in one clear line: no traceback, no warning in place of an answer."""

from __future__ import annotations

import os
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest

from layerscope.errors import LayerscopeError
from layerscope.evaluation.run import Evaluation
from tests.faults.fuzz import CASES, Scene
from tests.report.synthetic import synthetic_evaluation, synthetic_probe, synthetic_run, synthetic_study

# `make faults` raises these: seeded inputs of each kind
COUNT = int(os.environ.get("LAYERSCOPE_FAULTS", "0"))
QUICK = {"corpus": 60, "rows": 25, "labels": 40, "images": 20, "plan": 60, "model": 25, "run": 15, "choice": 20}
SEED = int(os.environ.get("LAYERSCOPE_FAULTS_SEED", "0"))

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def scene(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A tiny model's folder, and a finished run of each kind."""
    root = tmp_path_factory.mktemp("runs")
    synthetic_run().save(root / "profile")
    _save(synthetic_evaluation(), root / "evaluation")
    synthetic_probe().save(root / "probe")
    synthetic_study(root / "study")
    return Scene(model_folder, {path.name: path for path in root.iterdir()})


def _save(run: Evaluation, path: Path) -> None:
    from layerscope.store import RunFolder

    folder = RunFolder(path)
    folder.write_table("scores", run.scores)
    folder.write_table("gains", run.gains)
    folder.write_manifest({**run.manifest, "kind": "evaluation", "status": "complete"})


@pytest.mark.parametrize("name", CASES)
def test_mutated_inputs(name: str, scene: Scene, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kinds = sorted(CASES)
    defects: list[str] = []
    for number in range(COUNT or QUICK[name]):
        folder = tmp_path / str(number)
        folder.mkdir()
        rng = np.random.default_rng([SEED, kinds.index(name), number])
        try:
            CASES[name](scene, folder, rng)
        except LayerscopeError as error:
            if "\x1b" in str(error) or "Traceback" in str(error):
                defects.append(f"{name} {number}: an error that holds what a terminal obeys: {error!r}")
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            own = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if "/layerscope/" in f.filename), where)
            place = f"{Path(own.filename).name}:{own.lineno} … {Path(where.filename).name}:{where.lineno}"
            defects.append(f"{name} {number}: {type(error).__name__}: {str(error)[:150]} ({place})")
        shutil.rmtree(folder)
    capfd.readouterr()
    assert not defects, "\n".join(defects)
