"""Inputs that somebody could really give, changed a little or a lot, from a seed: files, models,
plans, folders of runs."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e308, "", "x", "\x1b[31mred\x1b[0m", "a\nb", "\0",
    "é" * 300,
    "../../outside.txt", "/nowhere/at/all", "nan", "1e999", [], {}, [[]], [None], {"a": None}, {"": ""}, ["x"] * 50, float("nan"),
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
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else []
    )
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found


@dataclass(frozen=True)
class Scene:
    """What the cases start from: a tiny model's folder, and folders of finished runs."""

    model: Path
    runs: dict[str, Path]
    other: Path
    vectors: Path


def make_scene(home: Path) -> Scene:
    """A tiny model's folder, and a finished run of each kind."""
    from layerscope.embedding import embed
    from layerscope.store import RunFolder
    from tests.report.synthetic import (
        synthetic_evaluation,
        synthetic_probe,
        synthetic_run,
    )
    from tests.tiny import build_tiny, tiny_tokenizer

    build_tiny("llama").save_pretrained(home / "model")
    (home / "model" / "texts.txt").write_text("\n".join(row["text"] for row in ROWS))
    tiny_tokenizer().save_pretrained(home / "model")
    runs = home / "runs"
    synthetic_run().save(runs / "profile")
    scores = synthetic_evaluation()
    folder = RunFolder(runs / "evaluation")
    folder.write_table("scores", scores.scores)
    folder.write_table("gains", scores.gains)
    folder.write_manifest({**scores.manifest, "kind": "evaluation", "status": "complete"})
    synthetic_probe().save(runs / "probe")
    build_tiny("bert").save_pretrained(home / "other")
    tiny_tokenizer().save_pretrained(home / "other")
    (home / "other" / "texts.txt").write_text(
        "\n".join(f"line {i} without a label" for i in range(48))
    )
    vectors = embed(
        str(home / "model"),
        [row["text"] for row in ROWS],
        home / "vectors.parquet",
        max_length=16,
        progress=False,
    )
    return Scene(
        home / "model", {path.name: path for path in runs.iterdir()}, home / "other", vectors
    )


# --- what is made of it ---

ROWS = [{"text": f"text {i}, with words", "label": i % 3, "score": i / 7} for i in range(48)]


def _written(folder: Path, suffix: str) -> Path:
    path, table = folder / f"data{suffix}", pd.DataFrame(ROWS)
    if suffix == ".parquet":
        table.to_parquet(path)
    elif suffix in (".csv", ".tsv"):
        table.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    else:
        path.write_text("\n".join(row["text"] for row in ROWS))
    return path


def texts_file(folder: Path, rng: np.random.Generator) -> Path:
    """A file of texts."""
    path = _written(
        folder, str(rng.choice([".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet"]))
    )
    path.write_bytes(mutate(path.read_bytes(), rng))
    return path


def labels_file(folder: Path, rng: np.random.Generator) -> Path:
    """A file of labeled examples."""
    path = _written(folder, str(rng.choice([".csv", ".tsv", ".jsonl"])))
    path.write_bytes(mutate(path.read_bytes(), rng))
    return path


def model_folder(scene: Scene, folder: Path, rng: np.random.Generator) -> Path:
    """A model's folder with one file changed."""
    target = folder / "model"
    shutil.copytree(scene.model, target)
    (target / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
    )
    name = str(
        rng.choice(
            ["config.json"] * 4
            + ["tokenizer.json", "tokenizer_config.json", "modules.json", "model.safetensors"]
        )
    )
    path = target / name
    if name == "model.safetensors" or rng.random() < 0.3:
        path.write_bytes(mutate(path.read_bytes(), rng))
    else:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (
            name == "tokenizer.json"
        ):  # a vocabulary of its own is large: its other parts are what matters
            vocabulary = content["model"].pop("vocab")
            content = distort(content, rng)
            if isinstance(content.get("model"), dict):
                content["model"].setdefault("vocab", vocabulary)
                if rng.random() < 0.2:
                    content["model"]["vocab"] = {
                        **vocabulary,
                        "zz": int(rng.choice([2**31 - 1, 10**8, 300])),
                    }
        else:
            content = distort(content, rng)
        path.write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")
    return target


def run_folder(scene: Scene, folder: Path, rng: np.random.Generator) -> Path:
    """The folder of a finished run, damaged."""
    kind = str(rng.choice(sorted(scene.runs)))
    target = folder / kind
    shutil.copytree(scene.runs[kind], target)
    files = sorted(
        path
        for path in target.rglob("*")
        if path.is_file() and path.suffix in (".json", ".parquet", ".safetensors")
    )
    path = target / "manifest.json" if rng.random() < 0.6 else files[int(rng.integers(len(files)))]
    if rng.random() < 0.2:
        path.unlink()
    else:
        path.write_bytes(mutate(path.read_bytes(), rng))
    return target


def task_folder(folder: Path, rng: np.random.Generator) -> Path:
    """The data of a task of one's own."""
    pairs = [{"sentence1": f"one {i}", "sentence2": f"two {i}", "score": i / 3} for i in range(8)]
    classes = [{"text": f"text {i}", "label": i % 2} for i in range(8)]
    rows, splits = (pairs, ("test",)) if rng.random() < 0.5 else (classes, ("train", "test"))
    for split in splits:
        lines = "\n".join(
            json.dumps(distort(row, rng) if rng.random() < 0.3 else row) for row in rows
        )
        raw = lines.encode("utf-8", "surrogatepass")
        (folder / "Own").mkdir(exist_ok=True)
        (folder / "Own" / f"{split}.jsonl").write_bytes(
            mutate(raw, rng) if rng.random() < 0.6 else raw
        )
    return folder


def map_folder(scene: Scene, folder: Path, rng: np.random.Generator) -> Path:
    """The folder of a run with a damaged map."""
    from layerscope.maps import FILE
    from layerscope.store import RunFolder
    from tests.report.synthetic import synthetic_map

    target = Path(shutil.copytree(scene.runs["profile"], folder / "profile"))
    synthetic_map().write(RunFolder(target))
    (target / FILE).write_bytes(mutate((target / FILE).read_bytes(), rng))
    return target


def vectors_file(scene: Scene, folder: Path, rng: np.random.Generator) -> Path:
    """A file of vectors: its bytes, its columns or what it says of itself changed."""
    path = Path(shutil.copyfile(scene.vectors, folder / "vectors.parquet"))
    if rng.random() < 0.4:
        path.write_bytes(mutate(path.read_bytes(), rng))
        return path
    table = pq.read_table(path)
    told = json.loads(table.schema.metadata[b"layerscope"])
    if rng.random() < 0.5:
        told = distort(told, rng)
    name, n = str(rng.choice(table.column_names)), len(table)
    odd = [
        ["x"] * n,
        [None] * n,
        [[1.0]] * n,
        list(range(n)),
        [b"\xff"] * n,
        [{"a": 1}] * n,
        [float("nan")] * n,
    ]
    if rng.random() < 0.5:
        table = table.set_column(
            table.column_names.index(name), name, pa.array(odd[int(rng.integers(len(odd)))])
        )
    elif rng.random() < 0.5:
        table = table.rename_columns(
            [str(_odd(rng))[:20] if one == name else one for one in table.column_names]
        )
    meta = {b"layerscope": json.dumps(told).encode("utf-8", "surrogatepass")}
    pq.write_table(table.replace_schema_metadata(meta), path)
    return path
