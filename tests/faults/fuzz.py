"""The fuzzers: inputs that somebody could really give, changed a little or a lot, from a seed.

    python -m tests.faults.fuzz plan 1250 0      # a kind of input, how many, the seed

`CASES` names every kind of input. Each makes a mutated input in a folder and uses it the way a command does. A case ends in a
result or in a `LayerscopeError`; any other error is a defect.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from layerscope.core.runs import load_run
from layerscope.data import load_corpus
from layerscope.data.images import load_images
from layerscope.errors import LayerscopeError
from layerscope.models import load
from layerscope.selection.choice import Choice
from layerscope.selection.labels.read import read_labels
from layerscope.sweeps.plan import read_plan

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e308, "", "x", "\x1b[31mred\x1b[0m", "a\nb", "\0",
    "é" * 300,
    "../../etc/passwd", "/dev/zero", "nan", "1e999", [], {}, [[]], [None], {"a": None}, {"": ""}, ["x"] * 50, float("nan"),
    float("inf"), "🙂", "\u202eabc", {"type": {}}, [{"a": [1, {"b": []}]}],
]  # fmt: skip
SNIPPETS = [
    b"\xff\xfe", b"\x00", b"[" * 2000, b"{" * 500, b'{"a":' * 1500, b"9" * 5000, b"NaN", b"Infinity", b"\xed\xa0\x80", b"\xc3",
    b"'", b'"', b"\\", b"\\u0000", b"\\ud800", b"\r", b"\n\n\n", b"- - - - - ", b"&a [*a, *a]",
    b"!!python/object/apply:os.system ['x']",
    b"\x1b[2J", b",,,,", b"\t", b"null", b"1e400", b"-0", b"\xef\xbb\xbf", b": :", b"? ", b"%YAML 9.9\n", b"PAR1", b"PK\x03\x04",
]  # fmt: skip


def mutate(raw: bytes, rng: np.random.Generator) -> bytes:
    """Bytes, changed in one to three places."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data) + 1))
        end = min(len(data), at + int(rng.integers(1, 40)))
        way = int(rng.integers(8))
        if way == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << int(rng.integers(8))
        elif way == 1:
            del data[at:end]
        elif way == 2:
            data[at:at] = data[at:end] * int(rng.integers(1, 30))
        elif way in (3, 4):
            data[at:at] = SNIPPETS[int(rng.integers(len(SNIPPETS)))]
        elif way == 5:
            del data[at:]
        elif way == 6 and rng.random() < 0.2:
            data = bytearray(bytes(data).decode("utf-8", "replace").encode("utf-16"))
        else:
            data[at:end] = rng.integers(0, 256, end - at, dtype=np.uint8).tobytes()
    return bytes(data)


def distort(value: Any, rng: np.random.Generator) -> Any:
    """A structure with one to three of its values replaced, removed, renamed or nested deeply."""
    value = copy.deepcopy(value)
    for _ in range(int(rng.integers(1, 4))):
        places = _places(value)
        if not places:
            return _odd(rng)
        holder, key = places[int(rng.integers(len(places)))]
        way = int(rng.integers(6))
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, dict):
            holder[str(_odd(rng))[:40]] = holder.pop(key)
        elif way == 2:
            deep: Any = "x"
            for _ in range(int(rng.integers(5, 80))):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            holder[key] = deep
        else:
            holder[key] = _odd(rng)
    return value


def _odd(rng: np.random.Generator) -> Any:
    return copy.deepcopy(ODD[int(rng.integers(len(ODD)))])


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found


@dataclass(frozen=True)
class Scene:
    """What the cases start from: a tiny model's folder, and folders of finished runs."""

    model: Path
    runs: dict[str, Path]


Case = Callable[[Scene, Path, np.random.Generator], Any]


# --- texts and labels ---

_ROWS = [{"text": f"text {i}, with words", "label": i % 3, "score": i / 7} for i in range(9)]


def _written(folder: Path, suffix: str) -> Path:
    path, table = folder / f"data{suffix}", pd.DataFrame(_ROWS)
    if suffix == ".parquet":
        table.to_parquet(path)
    elif suffix in (".csv", ".tsv"):
        table.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    elif suffix == ".json":
        path.write_text(json.dumps(_ROWS))
    elif suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, _ROWS)))
    else:
        path.write_text("\n".join(row["text"] for row in _ROWS))
    return path


def corpus(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A file of texts."""
    path = _written(folder, str(rng.choice([".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet"])))
    path.write_bytes(mutate(path.read_bytes(), rng))
    return load_corpus(path, column="text" if rng.random() < 0.3 and path.suffix != ".txt" else None)


def rows(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """Texts whose JSON is valid and whose values are odd."""
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(distort(row, rng)) for row in _ROWS), encoding="utf-8", errors="surrogatepass")
    return load_corpus(path)


def labels(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A file of labeled examples."""
    path = _written(folder, str(rng.choice([".csv", ".tsv", ".jsonl"])))
    path.write_bytes(mutate(path.read_bytes(), rng))
    return read_labels(path)


def images(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A parquet file of images."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)).save(stream, "PNG")
    odd = [0, -1, 10**9, 2**40, None, "x", "\x1b"]
    table = {"image": [stream.getvalue(), mutate(stream.getvalue(), rng)], "label": [0, odd[int(rng.integers(len(odd)))]]}
    if rng.random() < 0.5:
        table["image"] = [
            {"bytes": None, "path": str(ODD[int(rng.integers(len(ODD)))])},
            {"bytes": stream.getvalue(), "path": "a"},
        ]
    path = folder / "images.parquet"
    try:
        pd.DataFrame(table).to_parquet(path)
    except Exception:  # a table that cannot even be written
        return None
    if rng.random() < 0.3:
        path.write_bytes(mutate(path.read_bytes(), rng))
    return load_images(path)


# --- sweeps ---

_PLAN = {
    "name": "a plan", "out": "runs", "defaults": {"limit": 20, "max_length": 32},
    "models": ["smollm2-135m", {"name": "org/name", "revisions": ["main", 3]}],
    "corpora": ["lee", {"data": "texts.txt", "limit": 5}],
    "profile": {"metrics": ["prompt_entropy"], "views": 2}, "facts": {"org/name": {"parameters": 1000, "blocks": 3, "width": 8}},
    "steps": [{"study": "alpha", "models": ["smollm2-135m"], "options": {}},
              {"profile": {}, "models": ["minilm-l6"], "name": "b"}],
}  # fmt: skip


def plan(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A sweep's file."""
    path = folder / "plan.yaml"
    if rng.random() < 0.5:
        path.write_bytes(mutate(yaml.safe_dump(_PLAN).encode(), rng))
    else:
        path.write_text(yaml.safe_dump(distort(_PLAN, rng), allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    return read_plan(path)


# --- models ---


def model(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A model's folder with one file changed, loaded and tried on a text."""
    target = folder / "model"
    shutil.copytree(scene.model, target)
    (target / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
    )
    name = str(rng.choice(["config.json"] * 4 + ["tokenizer.json", "tokenizer_config.json", "modules.json", "model.safetensors"]))
    path = target / name
    if name == "model.safetensors" or rng.random() < 0.3:
        path.write_bytes(mutate(path.read_bytes(), rng))
    else:
        content = json.loads(path.read_text(encoding="utf-8"))
        if name == "tokenizer.json":  # a vocabulary of its own is large: its other parts are what matters
            vocabulary = content["model"].pop("vocab")
            content = distort(content, rng)
            if isinstance(content.get("model"), dict):
                content["model"].setdefault("vocab", vocabulary)
                if rng.random() < 0.2:
                    content["model"]["vocab"] = {**vocabulary, "zz": int(rng.choice([2**31 - 1, 10**8, 300]))}
        else:
            content = distort(content, rng)
        path.write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")
    return load(target).tokenize(["a text"], 8)


# --- runs ---


def run(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """The folder of a finished run, damaged or with an odd manifest, opened and put on a page."""
    from layerscope.report.contents import gather
    from layerscope.report.write import write

    kind = str(rng.choice(sorted(scene.runs)))
    target = folder / kind
    shutil.copytree(scene.runs[kind], target)
    files = sorted(path for path in target.rglob("*") if path.is_file() and path.suffix in (".json", ".parquet", ".npz", ".npy"))
    path = target / "manifest.json" if rng.random() < 0.6 else files[int(rng.integers(len(files)))]
    if path.name == "manifest.json" and rng.random() < 0.8:
        content = json.loads(path.read_text(encoding="utf-8"))
        content.pop("checksum")  # of an earlier version, or written by somebody else
        content.pop("tables", None)
        path.write_text(json.dumps(distort(content, rng)), encoding="utf-8", errors="surrogatepass")
    elif rng.random() < 0.2:
        path.unlink()
    else:
        path.write_bytes(mutate(path.read_bytes(), rng))
    opened = load_run(target)
    opened.summary()
    opened.tables()
    return write(gather([target]), folder / "page.md", None)


def choice(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """A choice of a layer, as `select --json` writes one."""
    good = {
        "layer": 3, "site": "block.2", "readout": "plain/mean/raw/keep/none", "expected_gain": 0.1, "ci_low": 0.0, "ci_high": 0.2,
        "risk_of_loss": 0.1, "tied": [3], "rule": "x", "blocks_saved": 1, "layers": 4, "model": "x", "warnings": ["y"],
    }  # fmt: skip
    path = folder / "choice.json"
    if rng.random() < 0.5:
        path.write_bytes(mutate(json.dumps(good).encode(), rng))
    else:
        path.write_text(json.dumps(distort(good, rng)), encoding="utf-8", errors="surrogatepass")
    return Choice.from_json(path).as_dict()


def task(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """The data of a task of one's own."""
    from layerscope.evaluation.tasks import resolve_tasks

    pairs = [{"sentence1": f"one {i}", "sentence2": f"two {i}", "score": i / 3} for i in range(8)]
    classes = [{"text": f"text {i}", "label": i % 2} for i in range(8)]
    rows, splits = (pairs, ("test",)) if rng.random() < 0.5 else (classes, ("train", "test"))
    for split in splits:
        lines = "\n".join(json.dumps(distort(row, rng) if rng.random() < 0.3 else row) for row in rows)
        raw = lines.encode("utf-8", "surrogatepass")
        (folder / "Own").mkdir(exist_ok=True)
        (folder / "Own" / f"{split}.jsonl").write_bytes(mutate(raw, rng) if rng.random() < 0.6 else raw)
    spec = resolve_tasks(["Own"], data_dir=folder)[0]
    return spec.facts(spec.load())


def manifest(scene: Scene, folder: Path, rng: np.random.Generator) -> Any:
    """The manifest of a run that somebody else has edited, opened and summed up."""
    kind = str(rng.choice(sorted(scene.runs)))
    target = folder / kind
    shutil.copytree(scene.runs[kind], target)
    path = target / "manifest.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for name in ("checksum", "tables"):
        content.pop(name, None)
    path.write_text(json.dumps(distort(content, rng)), encoding="utf-8", errors="surrogatepass")
    opened = load_run(target)
    opened.tables()
    return str(opened.summary())


CASES: dict[str, Case] = {
    "corpus": corpus, "rows": rows, "labels": labels, "images": images, "plan": plan, "model": model, "run": run,
    "choice": choice, "task": task, "manifest": manifest,
}  # fmt: skip


# --- running them ---


def make_scene(home: Path) -> Scene:
    """A tiny model's folder, and a finished run of each kind."""
    from layerscope.store import RunFolder
    from tests.report.synthetic import synthetic_evaluation, synthetic_probe, synthetic_run, synthetic_study
    from tests.tiny import build_tiny, tiny_tokenizer

    build_tiny("llama").save_pretrained(home / "model")
    tiny_tokenizer().save_pretrained(home / "model")
    runs = home / "runs"
    synthetic_run().save(runs / "profile")
    scores = synthetic_evaluation()
    folder = RunFolder(runs / "evaluation")
    folder.write_table("scores", scores.scores)
    folder.write_table("gains", scores.gains)
    folder.write_manifest({**scores.manifest, "kind": "evaluation", "status": "complete"})
    synthetic_probe().save(runs / "probe")
    synthetic_study(runs / "study")
    return Scene(home / "model", {path.name: path for path in runs.iterdir()})


def limit_memory(more: int = 4 * 2**30) -> None:
    """Let an input that asks for gigabytes end in a MemoryError, which is a defect, and not in a machine without memory."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as stream:
            now = int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def fuzz(name: str, count: int, seed: int) -> dict[str, Any]:
    """So many mutated inputs of one kind; which of them ended neither in a result nor in a clear error."""
    import torch

    torch.set_num_threads(1)
    limit_memory()
    home = Path(tempfile.mkdtemp(prefix="layerscope-fuzz-"))
    os.environ["LAYERSCOPE_CACHE"] = str(home / "cache")
    logging.disable(logging.CRITICAL)
    scene, clock = make_scene(home), time.monotonic()
    found: dict[str, Any] = {"input": name, "inputs": 0, "refused": 0, "defects": []}
    for number in range(count):
        folder = home / "case"
        folder.mkdir()
        rng = np.random.default_rng([seed, sorted(CASES).index(name), number])
        found["inputs"] += 1
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                CASES[name](scene, folder, rng)
        except LayerscopeError as error:
            found["refused"] += 1
            if any(odd in str(error) for odd in ("\x1b", "Traceback")) or not str(error).strip():
                found["defects"].append(f"{name} {number}: an error that a terminal obeys, or that says nothing: {error!r}")
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            own = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if "/layerscope/" in f.filename), where)
            place = f"{Path(own.filename).name}:{own.lineno} … {Path(where.filename).name}:{where.lineno}"
            found["defects"].append(f"{name} {number}: {type(error).__name__}: {str(error)[:150]} ({place})")
        shutil.rmtree(folder)
    shutil.rmtree(home, ignore_errors=True)
    return {**found, "seconds": round(time.monotonic() - clock)}


if __name__ == "__main__":
    print(json.dumps(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
