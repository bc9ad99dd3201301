"""Every command on tiny models, as functions of a folder, and what a folder then says in numbers.

They share one process: models are built once, and what an export does in a fresh process is done in
this one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

TEXTS = [
    f"text number {i} of some, about {'this and that ' * (i % 4)}and the rest" for i in range(14)
]
Tables = dict[str, pd.DataFrame]
NAMES = ("profile", "evaluate", "probe", "export", "improve", "embed", "train")


class Commands:
    """Commands on tiny models. `home` holds what they read; each writes `run` (and `store`) into
    the folder it is given.

    What those in `names` import is imported here, and not in every child.
    """

    def __init__(self, home: Path, names: Sequence[str] = NAMES) -> None:
        import torch

        from layerscope.profiling import encode
        from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

        torch.set_num_threads(1)
        torch.backends.mkldnn.enabled = False  # as in tests/conftest.py: slow for tiny models
        self.home, self.model = home, tiny_model("llama")
        self.folder = home / "model"
        build_tiny("llama").save_pretrained(self.folder)
        tiny_tokenizer().save_pretrained(self.folder)
        (home / "texts.txt").write_text("\n".join(TEXTS))
        encode.choose_shard_size = lambda *_: 3
        if "evaluate" in names:
            from tests.evaluation.support import write_tasks  # imports mteb

            self.data = write_tasks(home / "data", pairs=12, texts=12)
        if {"export", "improve", "train"} & set(names):
            import sentence_transformers  # noqa: F401

            from layerscope.exporting import verifying

            verifying.subprocess.run = _in_this_process
        if set(names) - {"profile"}:
            pass

        self.judge = tiny_model("bert", seed=3)
        self.judge.identity["sentence_encoder"] = True

    def run(self, name: str, out: Path) -> None:
        """Run a command into a folder, or go on where it was stopped there."""
        getattr(self, name)(out)

    def profile(self, out: Path) -> None:
        """A profile in shards of three prompts."""
        from layerscope.profiling import profile

        profile(
            self.model,
            TEXTS,
            out=out / "run",
            views=2,
            permutations=2,
            max_length=24,
            progress=False,
        )

    def evaluate(self, out: Path) -> None:
        """Two tasks, two readouts, a store of its own."""
        from layerscope import evaluate

        readouts = ["plain/mean/raw/keep/none", "plain/last/applied/keep/corpus"]
        evaluate(
            self.model, ["Pairs", "Topics"], data_dir=self.data, out=out / "run", store=out / "store", readouts=readouts,
            scoring_workers=0, layers=[0, 3], progress=False,
        )  # fmt: skip

    def probe(self, out: Path) -> None:
        """Two kinds of probes."""
        from layerscope.probing import probe

        labels = ["xyz"[i % 3] for i in range(60)]
        texts = [label * 3 + f" item {i}" for i, label in enumerate(labels)]
        settings: dict[str, Any] = {
            "epochs": 3,
            "trial": 1,
            "learning_rates": (1e-2, 3e-2),
            "progress": False,
        }
        probe(
            self.model,
            data=texts,
            labels=labels,
            heads=["mean", "attention"],
            out=out / "run",
            **settings,
        )

    def improve(self, out: Path) -> None:
        """A readout chosen by a judge, and its folder."""
        import layerscope

        settings: dict[str, Any] = {
            "max_length": 48,
            "progress": False,
            "templates": ["one-word"],
            "judge": self.judge,
        }
        texts = [f"{text} {i}" for i in range(3) for text in TEXTS]
        layerscope.improve(self.model, texts, out=out / "run", store=out / "store", **settings)

    def train(self, out: Path) -> None:
        """Blocks trained for a few steps, with a look and a state to go on from after each. It is
        too short to help, so that what is handed over is the head whatever was rounded."""
        import layerscope
        from layerscope.improving import flow

        flow.find_teacher = _any_prompt
        few = {
            "max_steps": 4,
            "eval_steps": 1,
            "learning_rate": 1e-9,
            "per_device_train_batch_size": 16,
        }
        settings: dict[str, Any] = {
            "max_length": 48,
            "progress": False,
            "templates": ["one-word"],
            "judge": self.judge,
        }
        texts = [f"{i} {text}" for i in range(16) for text in TEXTS]
        layerscope.improve(
            self.model, texts, out=out / "run", store=out / "store", train=few, **settings
        )

    def embed(self, out: Path) -> None:
        """Vectors in parts of eight, in one file."""
        import layerscope
        from layerscope.embedding import writing

        writing._BLOCK_BYTES, writing.BLOCK = 2**12, 8
        (out / "run").mkdir(parents=True, exist_ok=True)
        rows = pd.DataFrame(
            {"text": [f"{text} {i}" for i in range(20) for text in TEXTS], "n": range(280)}
        )
        layerscope.embed(
            self.model,
            rows,
            out / "run" / "v.parquet",
            max_length=24,
            progress=False,
        )

    def export(self, out: Path) -> None:
        """A layer as a folder of its own."""
        from tests.exporting.support import brief_export

        brief_export(self.model, 2, "plain/mean/raw/keep/none", out / "run", overwrite=True)


def _any_prompt(judgment: Any, candidates: Any, encoder: str) -> Any:
    """A prompt teaches, whatever was judged: tiny models know nothing, and a head needs a
    teacher."""
    from layerscope.core.scores import Scores
    from layerscope.improving.fit import find_teacher

    ahead = np.array([float(item.readout.template != "plain") for item in candidates])
    lifted = Scores(judgment.values + ahead, judgment.draws + ahead[:, None])
    return find_teacher(lifted, candidates, encoder)


def _in_this_process(command: list[str], **_: Any) -> Any:
    """What an export asks of a fresh process: it takes ten seconds to start, and is tested
    elsewhere."""
    from layerscope.exporting import reload_child

    reload_child.main(command[-1])
    facts = Path(json.loads(Path(command[-1]).read_text())["facts"])
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "layerscope_loaded": False}))
    return subprocess.CompletedProcess(command, 0, "", "")


def tables(folder: Path) -> Tables:
    """Everything that a command's folder says in numbers, checked as a reader checks it."""
    from layerscope import load_run
    from layerscope.core.runs import MARKER
    from layerscope.store.checked import DamagedFileError, check_files

    if (folder / "run" / "v.parquet").exists():
        vectors = pd.read_parquet(folder / "run" / "v.parquet")
        return {
            "vectors": vectors.drop(columns="vector"),
            "numbers": pd.DataFrame(np.stack(list(vectors["vector"]))),
        }
    exported = (folder / "run" / MARKER).exists()
    found: Tables = {}
    if exported:
        checks = dict(check_files(folder / "run"))
        for file, problem in checks.items():
            if problem:
                raise DamagedFileError(file, problem)
        found["files"] = pd.DataFrame({"name": sorted(file.name for file in checks)})
        for file in (file for file in checks if file.suffix == ".safetensors"):
            found[file.name] = pd.DataFrame(
                {"bytes": np.frombuffer(file.read_bytes(), dtype=np.uint8)}
            )
    if (folder / "run" / "manifest.json").exists() or not exported:
        run = load_run(folder / "run")
        found |= {
            name: table for name, table in run.tables().items() if name != "jobs"
        }  # those hold times
        for part, by_place in (run.items() if run.kind == "evaluation" else {}).items():  # type: ignore[attr-defined]
            for place, items in by_place.items():
                found[f"{part} {place}"] = pd.DataFrame({"values": items.values})
    return found


def same(a: Tables, b: Tables) -> bool:
    """Whether tables hold the same, up to what other batches round otherwise."""
    try:
        for name, table in a.items():
            pd.testing.assert_frame_equal(table, b[name], rtol=1e-5, atol=1e-6)
    except (AssertionError, KeyError):
        return False
    return a.keys() == b.keys()


Work = Callable[[Path], None]
