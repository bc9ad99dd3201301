"""The rows of the golden tables: each row is one function that runs layerscope and records what it
gives.

`golden.py` runs a row in a process of its own: `python golden_rows.py ROW FOLDER RESULT`. The rows
use the public functions of layerscope. Where a package may take over a part, the name of the module
stands in one constant below.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Modules that hold a name, newest first: `golden.py times` runs the rows in older checkouts too.
HOMES = {
    "study": ("layerscope_paper", "layerscope"),
    "correlate": ("layerscope_paper", "layerscope"),
    "atlas": ("layerscope_paper", "layerscope"),
    "load_corpus": ("layerscope", "layerscope.data"),
    "TASKS": ("layerscope_zoo.tasks", "layerscope.evaluation.tasks"),
}

SHAPES = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "shapes"
TINY_TEXTS = 24
SAMPLED_COLUMNS = 6


def find(name: str) -> Any:
    """Return a function or module by its name, from the first module that holds it."""
    for module in HOMES[name]:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise LookupError(f"{name} is in none of {', '.join(HOMES[name])}. Mend HOMES.")


def known(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return the options that a function names among its parameters."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in names}


class Recorder:
    """The numbers and choices of one row, by group and key."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[str, float | None]] = {}
        self.choices: dict[str, dict[str, str]] = {}

    def number(self, group: str, key: str, value: Any) -> None:
        """Record one number; None stands for a value that is undefined."""
        values = self.numbers.setdefault(group, {})
        if key in values:
            raise ValueError(f"{group}: two numbers have the key {key!r}")
        value = math.nan if value is None else float(value)
        values[key] = None if math.isnan(value) else value

    def choice(self, group: str, key: str, value: Any) -> None:
        """Record one value that must stay equal, as a string."""
        values = self.choices.setdefault(group, {})
        if key in values:
            raise ValueError(f"{group}: two choices have the key {key!r}")
        values[key] = str(value)

    def table(
        self, group: str, table: pd.DataFrame, keys: Sequence[str], values: Sequence[str]
    ) -> None:
        """Record columns of a table: a group for each column, or for each metric of it."""
        for row in table.to_dict("records"):
            key = " ".join(str(row[name]) for name in keys if name != "metric")
            metric = f" {row['metric']}" if "metric" in keys else ""
            for name in values:
                self.number(f"{group}{metric} {name}".strip(), key, row[name])

    def vectors(self, group: str, vectors: Any) -> None:
        """Record the norm and a few columns of each vector."""
        rows = np.atleast_2d(np.asarray(vectors, dtype=np.float64))
        columns = np.linspace(0, rows.shape[1] - 1, SAMPLED_COLUMNS).astype(int)
        self.choice(group, "shape", rows.shape)
        for i, row in enumerate(rows):
            self.number(f"{group} norms", str(i), np.linalg.norm(row))
            for column in columns:
                self.number(f"{group} columns", f"{i} {column}", row[column])

    def decision(self, group: str, choice: Any) -> None:
        """Record a `Choice`: what was chosen, and the gain that it claims."""
        for name in ("layer", "readout", "rule", "abstained", "tied", "layers"):
            self.choice(group, name, getattr(choice, name))
        for name in ("gain", "gain_layer", "gain_readout"):
            interval = getattr(choice, name)
            if interval is not None:
                for part in ("value", "low", "high"):
                    self.number(f"{group} {name}", part, getattr(interval, part))
        for name in ("before", "after", "risk_of_loss"):
            if getattr(choice, name) is not None:
                self.number(f"{group} {name}", name, getattr(choice, name))


ROWS: dict[str, Callable[[Path, Recorder], None]] = {}


def row(function: Callable[[Path, Recorder], None]) -> Callable[[Path, Recorder], None]:
    """Add a function to the rows, under its own name with dashes."""
    ROWS[function.__name__.replace("_", "-")] = function
    return function


# Data


WORDS = (
    *("river", "stone", "copper", "window", "garden", "engine", "letter", "market", "winter"),
    *("signal", "bridge", "paper", "doctor", "yellow", "coffee", "animal", "planet", "office"),
    *("summer", "ticket", "forest", "bottle", "silver", "castle", "mirror", "copper", "stone"),
)


def make_texts(count: int = TINY_TEXTS, seed: int = 0, words: int = 9) -> list[str]:
    """Return texts of random words, no two alike."""
    rng = np.random.default_rng(seed)
    return [f"{' '.join(rng.choice(WORDS, words))} {i}" for i in range(count)]


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Write a text file."""
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_table(path: Path, **columns: Sequence[Any]) -> Path:
    """Write a CSV file."""
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def make_labeled(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return texts of which one word tells the class, and the classes."""
    kinds = ("apple", "train", "music")
    texts = make_texts(count, seed, words=5)
    labels = [kinds[i % 3] for i in range(count)]
    return [f"{label} {text}" for label, text in zip(labels, texts, strict=True)], labels


def trec_questions() -> list[str]:
    """Return the distinct questions of TREC's training split, in their order."""
    rows = find("TASKS").get("TrecQuestions").splits()["train"]
    return list(dict.fromkeys(row["text"] for row in rows))


# Tiny models, written as folders


SPECIAL = ("<pad>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]")
IDS = {"vocab_size": 262, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN = {
    **IDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
MODELS = {
    "llama": ("LlamaModel", "LlamaConfig", {**PLAIN, "num_key_value_heads": 2, "head_dim": 8}),
    "neox": ("GPTNeoXModel", "GPTNeoXConfig", PLAIN),
    "bert": ("BertModel", "BertConfig", PLAIN),
    "mamba": (
        "MambaModel",
        "MambaConfig",
        {**IDS, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8},
    ),
    "vit": (
        "ViTModel",
        "ViTConfig",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
        },
    ),
}


def build(kind: str, seed: int = 0) -> Any:
    """Return a tiny module with random weights everywhere, norms and biases too."""
    import torch
    import transformers

    model, config, settings = MODELS[kind]
    torch.manual_seed(seed)
    module = getattr(transformers, model)(getattr(transformers, config)(**settings))
    for name, parameter in module.named_parameters():
        if name.endswith(("A_log", "dt_bias", "dt_proj.bias", ".D")):
            continue  # the time constants of a Mamba must stay in their range
        noise = torch.randn_like(parameter)
        is_scale = name.endswith("weight") and parameter.dim() == 1
        parameter.data = 1 + 0.3 * noise if is_scale else 0.25 * noise
    return module.eval()


def tokenizer(encoder: bool) -> Any:
    """Return a tokenizer with one token per byte."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    template = "[CLS] $A [SEP]" if encoder else "<s> $A"
    used = [(token, vocabulary[token]) for token in template.split() if token != "$A"]
    core.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    names = ("pad_token", "bos_token", "eos_token", "cls_token", "sep_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, **dict(zip(names, SPECIAL, strict=True))
    )


def tiny(work: Path, kind: str, seed: int = 0, name: str | None = None) -> Path:
    """Write a tiny language model with its tokenizer, and return its folder."""
    folder = work / (name or f"tiny-{kind}")
    build(kind, seed).save_pretrained(folder)
    tokenizer(kind == "bert").save_pretrained(folder)
    return folder


def tiny_vit(work: Path) -> Path:
    """Write a tiny vision transformer with its preprocessor, and return its folder."""
    import transformers

    folder = work / "tiny-vit"
    build("vit").save_pretrained(folder)
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(folder)
    return folder


def tiny_aim(work: Path) -> Path:
    """Write a tiny AIM model under the names of the published weights, and return its folder."""
    import torch
    from safetensors.torch import save_file

    width, blocks = 24, 2
    shapes: dict[str, tuple[int, ...]] = {
        "preprocessor.patchifier.proj.weight": (width, 3, 4, 4),
        "preprocessor.patchifier.proj.bias": (width,),
        "preprocessor.patchifier.norm.weight": (width,),
        "preprocessor.patchifier.norm.bias": (width,),
        "trunk.post_trunk_norm.weight": (width,),
        "trunk.post_trunk_norm.bias": (width,),
    }
    for k in range(blocks):
        block = f"trunk.blocks.{k}"
        shapes |= {
            f"{block}.attn.qkv.weight": (3 * width, width),
            f"{block}.attn.proj.weight": (width, width),
            f"{block}.norm_1.weight": (width,),
            f"{block}.norm_1.bias": (width,),
            f"{block}.mlp.fc1.weight": (4 * width, width),
            f"{block}.mlp.fc2.weight": (width, 4 * width),
            f"{block}.norm_2.weight": (width,),
            f"{block}.norm_2.bias": (width,),
        }
    folder = work / "tiny-aim"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    state = {key: 0.3 * torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    save_file(state, folder / "model.safetensors")
    config = {
        "embed_dim": width,
        "img_size": 16,
        "num_blocks": blocks,
        "num_channels": 3,
        "num_classes": 1000,
        "num_heads": 3,
        "patch_size": 4,
        "probe_layers": [0, 1],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pictures(work: Path, count: int = 12) -> Path:
    """Write a folder of class folders with smooth pictures."""
    from PIL import Image

    rng = np.random.default_rng(0)
    at = np.linspace(0, 3, 32)
    for i in range(count):
        waves = rng.uniform(0.5, 3, (3, 2))
        shifts = rng.uniform(0, 6, (3, 2))
        channels = [
            np.sin(a * at[:, None] + s) * np.cos(b * at[None] + t)
            for (a, b), (s, t) in zip(waves, shifts, strict=True)
        ]
        values = np.stack(channels, -1) + rng.normal(0, 0.1, (32, 32, 3))
        folder = work / "pictures" / f"class{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.clip((values + 1) * 127, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return work / "pictures"


def make_adapter(work: Path) -> Path:
    """Write a LoRA adapter of the tiny Llama."""
    import peft
    import torch

    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"])
    adapted = peft.get_peft_model(build("llama"), config)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    adapted.save_pretrained(work / "adapter")
    return work / "adapter"


def make_task(work: Path, name: str = "STS12", count: int = 60) -> Path:
    """Write a folder with the pairs of a task of similarity, and return the folder."""
    rng = np.random.default_rng(3)
    texts = make_texts(count, seed=3)
    folder = work / "tasks" / name
    folder.mkdir(parents=True)
    lines = []
    for text in texts:
        words = text.split()
        kept = int(rng.integers(0, len(words)))
        changed = [*words[:kept], *rng.choice(WORDS, len(words) - kept)]
        shared = len(set(words) & set(changed)) / len(set(words) | set(changed))
        pair = {"sentence1": text, "sentence2": " ".join(changed), "score": round(5 * shared, 2)}
        lines.append(json.dumps(pair))
    write_lines(folder / "test.jsonl", lines)
    return work / "tasks"


# What the functions of layerscope return


PROFILE_KEYS = ("metric", "site", "normalization", "sink")
PROFILE_VALUES = ("value", "ci_low", "ci_high")
SCORE_KEYS = (
    "task",
    "template",
    "pooling",
    "final_norm",
    "sink",
    "centering",
    "layer",
)


def record_profile(found: Recorder, run: Any, group: str = "", intervals: bool = False) -> None:
    """Record the values of a profile, and their intervals if asked for."""
    found.table(group, run.table, PROFILE_KEYS, PROFILE_VALUES[: 3 if intervals else 1])
    found.choice(group, "items", sorted(set(run.table["n"])))


def record_evaluation(found: Recorder, run: Any, group: str = "evaluate") -> None:
    """Record the scores of an evaluation and their gains."""
    found.table(f"{group} scores", run.scores, SCORE_KEYS, ("score",))
    values = ("gain", "ci_low", "ci_high", "gain_over_default", "default_ci_low", "default_ci_high")
    found.table(f"{group} gains", run.gains, SCORE_KEYS, values)


def record_improved(found: Recorder, run: Any, texts: Sequence[str]) -> None:
    """Record the choice, the candidates' scores, and the vectors of the improved model."""
    found.decision("choice", run.choice)
    table = run.table
    names = [name for name in table.columns if name not in ("seconds",)]
    numeric = [name for name in names if pd.api.types.is_float_dtype(table[name])]
    keys = [name for name in names if name not in numeric]
    keys = [name for name in keys if not pd.api.types.is_bool_dtype(table[name])]
    found.table("candidates", table, keys, numeric)
    found.choice("candidates", "columns", list(table.columns))
    found.vectors("vectors", run.encode(list(texts)))


def folder_vectors(folder: Path, texts: Sequence[str]) -> np.ndarray:
    """Return what sentence-transformers encodes with an exported folder."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), local_files_only=True, device="cpu")
    return np.asarray(model.encode(list(texts), show_progress_bar=False))


def record_study(found: Recorder, run: Any, group: str) -> None:
    """Record the table of a study and its verdict."""
    for i, record in enumerate(run.table.to_dict("records")):
        for name, value in record.items():
            if isinstance(value, float | int | np.number) and not isinstance(value, bool):
                if "seconds" not in name:
                    found.number(f"{group} {name}", str(i), value)
            else:
                found.choice(f"{group} {name}", str(i), value)
    for i, sentence in enumerate(run.verdict):
        found.choice(f"{group} verdict", str(i), sentence)


# Rows: real models


@row
def profile_smollm2(work: Path, found: Recorder) -> None:
    """All metrics at all layers of smollm2-135m."""
    import layerscope

    run = layerscope.profile("smollm2-135m", "lee", limit=12, max_length=64, progress=False)
    record_profile(found, run, intervals=True)
    found.decision("select", layerscope.select(run))


@row
def profile_minilm(work: Path, found: Recorder) -> None:
    """All metrics at all layers of minilm-l6."""
    import layerscope

    run = layerscope.profile("minilm-l6", "lee", limit=24, max_length=64, progress=False)
    record_profile(found, run, intervals=True)
    found.decision("select", layerscope.select(run))


@row
def profile_mamba(work: Path, found: Recorder) -> None:
    """All metrics at all layers of a tiny Mamba."""
    import layerscope

    run = layerscope.profile(tiny(work, "mamba"), make_texts(), max_length=48, progress=False)
    record_profile(found, run, intervals=True)
    found.decision("select", layerscope.select(run))


@row
def evaluate_smollm2(work: Path, found: Recorder) -> None:
    """An evaluation of smollm2-135m on a catalogued task, all readouts, and its choice."""
    import layerscope

    run = layerscope.evaluate(
        "smollm2-135m",
        "LeeSimilarity",
        layers=[0, 5, 10, 15, 20, 25, 30],
        readouts="all",
        max_length=32,
        progress=False,
        **known(layerscope.evaluate, scoring_workers=0),
    )
    record_evaluation(found, run)
    found.decision("select", layerscope.select(run))
    found.decision("select cheaper", layerscope.select(run, max_blocks=0.5))


@row
def evaluate_minilm(work: Path, found: Recorder) -> None:
    """An evaluation of minilm-l6 on a local and on a catalogued task, and its choice."""
    import layerscope

    options = {"progress": False, "max_length": 32, **known(layerscope.evaluate, scoring_workers=0)}
    local = layerscope.evaluate(
        "minilm-l6", "STS12", data_dir=make_task(work), readouts="all", **options
    )
    record_evaluation(found, local, "local")
    found.decision("select local", layerscope.select(local))
    run = layerscope.evaluate("minilm-l6", "TrecQuestions", sample=100, **options)
    record_evaluation(found, run)
    found.decision("select", layerscope.select(run))


@row
def evaluate_mamba(work: Path, found: Recorder) -> None:
    """An evaluation of a tiny Mamba on a local task, and its choice."""
    import layerscope

    run = layerscope.evaluate(
        tiny(work, "mamba"),
        "STS12",
        data_dir=make_task(work),
        readouts="all",
        progress=False,
        **known(layerscope.evaluate, scoring_workers=0),
    )
    record_evaluation(found, run)
    found.decision("select", layerscope.select(run))


@row
def improve_smollm2(work: Path, found: Recorder) -> None:
    """An improvement of smollm2-135m on 600 questions, exported, and the vectors of the folder."""
    import layerscope

    questions = trec_questions()
    given, unseen = questions[20:620], questions[:20]
    file = write_table(work / "questions.csv", text=given)
    better = layerscope.improve(
        "smollm2-135m",
        file,
        column="text",
        out=work / "better",
        sample=200,
        max_length=32,
        budget=0.35,
        center_on="all",
        templates=["plain", "one-word"],
        progress=False,
    )
    record_improved(found, better, unseen)
    found.vectors("folder", folder_vectors(work / "better", unseen))


@row
def embed_smollm2(work: Path, found: Recorder) -> None:
    """The vectors of 300 texts at the middle layer of smollm2-135m."""
    import layerscope

    file = write_table(work / "texts.csv", text=trec_questions()[:300], number=range(300))
    options: dict[str, Any] = {"column": "text", "layers": 15, "max_length": 32, "progress": False}
    out = layerscope.embed("smollm2-135m", file, work / "vectors.parquet", **options)
    table = pd.read_parquet(out)
    found.choice("columns", "names", list(table.columns))
    vectors = np.stack(table[table.columns[-1]].to_list())
    found.vectors("vectors", vectors[::15])


# Rows: everything else, on tiny models


@row
def sublayers(work: Path, found: Recorder) -> None:
    """Profiles at the outputs of attention and MLP, and the study of them."""
    import layerscope

    for kind in ("llama", "neox"):
        model = tiny(work, kind)
        sites = ["embed", "block.*", "block.*.attn", "block.*.mlp"]
        run = layerscope.profile(
            model, make_texts(), sites=sites, final_norm="raw", max_length=32, progress=False
        )
        record_profile(found, run, kind)
        texts = make_texts(6)
        study = find("study")("sublayers", model, data=texts)
        record_study(found, study, f"{kind} study")


@row
def images(work: Path, found: Recorder) -> None:
    """All metrics of a vision transformer on pictures, with augmented views."""
    import layerscope

    run = layerscope.profile(tiny_vit(work), pictures(work), views=3, progress=False)
    record_profile(found, run, intervals=True)


@row
def aim(work: Path, found: Recorder) -> None:
    """All metrics of an AIM model, with and without its causal mask."""
    import layerscope

    model = tiny_aim(work)
    data = pictures(work)
    for attention in ("bidirectional", "causal", "prefix:5"):
        run = layerscope.profile(model, data, attention=attention, progress=False)
        record_profile(found, run, attention)


@row
def probes(work: Path, found: Recorder) -> None:
    """Attention, linear, mean and nearest-neighbor probes at all layers, of texts and of images."""
    import layerscope

    texts, labels = make_labeled(60)
    model = tiny(work, "llama")
    options: dict[str, Any] = {"epochs": 3, "trial": 1, "progress": False}
    names = ["attention", "linear", "mean", "knn"]
    data = write_table(work / "labeled.csv", text=texts, label=labels)
    run = layerscope.probe(model, data, heads=names, **options)
    record_study(found, _Tabled(run.table), "texts")
    run = layerscope.probe(tiny_vit(work), pictures(work, 30), heads=["attention"], **options)
    record_study(found, _Tabled(run.table), "images")


class _Tabled:
    """A table as a study gives it, without a verdict."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self.verdict: list[str] = []


@row
def llm2vec(work: Path, found: Recorder) -> None:
    """A decoder whose attention is made bidirectional."""
    import layerscope

    model = tiny(work, "llama")
    run = layerscope.profile(model, make_texts(), bidirectional=True, max_length=32, progress=False)
    record_profile(found, run)


@row
def adapters(work: Path, found: Recorder) -> None:
    """A model with a merged LoRA adapter."""
    import layerscope

    model, adapter = tiny(work, "llama"), make_adapter(work)
    run = layerscope.profile(
        model, make_texts(), adapters=[str(adapter)], max_length=32, progress=False
    )
    record_profile(found, run)


@row
def families(work: Path, found: Recorder) -> None:
    """The vectors of every layer, of every tiny language model, under several readouts."""
    import layerscope

    for kind in ("llama", "neox", "bert", "mamba"):
        model = tiny(work, kind)
        readouts = (
            "plain/mean/applied/keep/none",
            "plain/last/raw/keep/none",
            "plain/wmean/applied/keep/none",
            "plain/max/raw/keep/corpus",
            "one-word/last/applied/keep/none",
        )
        for readout in readouts:
            vectors = layerscope.encode(
                model, make_texts(4), layers="all", readout=readout, progress=False
            )
            found.vectors(f"{kind} {readout}", vectors.reshape(-1, vectors.shape[-1]))


@row
def extreme_inputs(work: Path, found: Recorder) -> None:
    """The study of repeated, random and lengthened prompts."""
    run = find("study")(
        "extreme", tiny(work, "llama"), data=make_texts(5), levels=[0, 0.5, 1], lengths=[12], seed=3
    )
    record_study(found, run, "extreme")


@row
def studies(work: Path, found: Recorder) -> None:
    """The other studies that take texts: checkpoints, scale, comparison, reasoning, prefixes."""
    study = find("study")
    steps = work / "training"
    first = tiny(work, "llama", 0, "training/step0")
    second = tiny(work, "llama", 1, "training/step20")
    texts = make_texts(8)
    record_study(found, study("checkpoints", steps, data=texts), "checkpoints")
    record_study(found, study("compare", first, second, data=texts), "compare")
    record_study(found, study("scale", first, second, data=texts), "scale")
    reasoning = study("reasoning", first, second, data=texts, stride=5)
    record_study(found, reasoning, "reasoning")


@row
def correlation(work: Path, found: Recorder) -> None:
    """Correlations of metrics with scores across layers, against random curves."""
    rng = np.random.default_rng(0)
    level = np.sin(np.linspace(0, 3, 12)) + 0.8 * np.sin(np.linspace(0, 25, 12))
    scores = pd.DataFrame(
        [
            {"task": f"t{t}", "layer": k, "score": level[k] + 0.1 * rng.normal() + t}
            for t in range(4)
            for k in range(12)
        ]
    )
    metrics = pd.DataFrame(
        [{"metric": "follows", "layer": k, "value": -level[k]} for k in range(12)]
        + [{"metric": "noise", "layer": k, "value": rng.normal()} for k in range(12)]
    )
    run = find("correlate")(metrics, scores, surrogates=199, bootstrap=100)
    record_study(found, _Tabled(run.layers), "layers")
    record_study(found, _Tabled(run.tasks), "tasks")


@row
def published(work: Path, found: Recorder) -> None:
    """Published scores and metrics of a model, as the atlas gives them."""
    atlas = find("atlas")
    scores = atlas.select_scores("Pythia-410m", "english")
    record_study(found, _Tabled(scores.iloc[::40]), "scores")
    values = atlas.metric_values("Pythia-410m", "wikitext", "entropy_prompt")
    record_study(found, _Tabled(pd.DataFrame(values)), "metric")


@row
def presets(work: Path, found: Recorder) -> None:
    """The conventions of the paper and of the code that its authors released."""
    import layerscope

    model = tiny(work, "llama")
    try:
        from layerscope_paper.presets import PRESETS
    except ImportError:
        PRESETS = {name: {"preset": name} for name in ("default", "paper", "released")}
    for preset, settings in PRESETS.items():
        run = layerscope.profile(
            model,
            make_texts(8),
            max_length=32,
            permutations=3,
            progress=False,
            **{**settings, "augmenter": "builtin"},
        )
        record_profile(found, run, preset)


@row
def options(work: Path, found: Recorder) -> None:
    """Other orders of the entropy, other rows, other final norms and lengths."""
    import layerscope

    model = tiny(work, "neox")
    changes: dict[str, dict[str, Any]] = {
        "alpha 2": {"alpha": 2},
        "alpha inf": {"alpha": math.inf},
        "raw rows": {"rows": "raw"},
        "unit rows": {"rows": "unit"},
        "raw norm": {"final_norm": "raw"},
        "hf norm": {"final_norm": "hf"},
        "seed": {"seed": 4},
    }
    for name, change in changes.items():
        run = layerscope.profile(
            model, make_texts(8), views=2, max_length=24, progress=False, **change
        )
        record_profile(found, run, name)


@row
def search(work: Path, found: Recorder) -> None:
    """An improvement for a search, with queries and pairs."""
    import layerscope

    rng = np.random.default_rng(0)
    documents = make_texts(60, words=8)
    queries = ["where " + " ".join(rng.permutation(text.split())[:5]) for text in documents]
    run = layerscope.improve(
        tiny(work, "llama"),
        documents,
        queries=queries,
        pairs=list(zip(queries, documents, strict=True)),
        judge="none",
        templates=["one-word", "answer"],
        max_length=120,
        out=work / "better",
        progress=False,
    )
    record_improved(found, run, documents[:6])
    found.vectors("queries", run.encode_query(queries[:6]))


@row
def improve_tiny(work: Path, found: Recorder) -> None:
    """An improvement without labels, by the model's own consistency, exported."""
    import layerscope

    texts = make_texts(80)
    run = layerscope.improve(
        tiny(work, "llama"),
        texts,
        out=work / "better",
        judge="none",
        max_length=96,
        center_on="all",
        progress=False,
    )
    record_improved(found, run, texts[:6])
    found.vectors("folder", folder_vectors(work / "better", texts[:6]))


def select_by_labels(model: Any, file: Path, **options: Any) -> Any:
    """Choose a layer by labels; in older checkouts a function of its own does that."""
    import layerscope

    older = getattr(layerscope, "select_with_labels", None)
    if older is not None:
        return older(model, file, progress=False, **options)
    return layerscope.select(model, labels=file, progress=False, **options)


@row
def labels(work: Path, found: Recorder) -> None:
    """Choices by labels: an improvement, and the choice alone for classes and for scored pairs."""
    import layerscope

    texts, kinds = make_labeled(60)
    file = write_table(work / "labels.csv", text=texts, label=kinds)
    model = tiny(work, "llama")
    run = layerscope.improve(
        model,
        make_texts(60, seed=8),
        labels=file,
        judge="none",
        templates=["plain", "one-word"],
        max_length=96,
        center_on="all",
        progress=False,
    )
    record_improved(found, run, texts[:6])
    found.decision(
        "select_with_labels",
        select_by_labels(model, file, readouts="all"),
    )
    first, second = make_texts(40, seed=5), make_texts(40, seed=5)
    rng = np.random.default_rng(0)
    second = [" ".join(rng.permutation(text.split())[: 3 + i % 6]) for i, text in enumerate(second)]
    scores = [3 + i % 6 for i in range(40)]
    pairs = write_table(work / "pairs.csv", sentence1=first, sentence2=second, score=scores)
    found.decision("pairs", select_by_labels(model, pairs, readouts="all"))


@row
def student(work: Path, found: Recorder) -> None:
    """An improvement that trains the blocks below the head for two steps."""
    import layerscope

    texts = trec_questions()[:200]
    run = layerscope.improve(
        "smollm2-135m",
        texts,
        templates=["plain", "one-word"],
        max_length=32,
        sample=200,
        budget=0.35,
        train={"max_steps": 2, "eval_steps": 1, "per_device_train_batch_size": 8},
        time=30,
        out=work / "better",
        progress=False,
    )
    record_improved(found, run, texts[:6])
    found.vectors("folder", folder_vectors(work / "better", texts[:6]))


@row
def exports(work: Path, found: Recorder) -> None:
    """Exported folders of several layers and readouts, with a mean to subtract, and ONNX."""
    import layerscope

    texts = make_texts(8)
    ways: dict[str, dict[str, Any]] = {
        "llama": {"layer": 2, "readout": "plain/mean/applied", "formats": ["onnx"]},
        "bert": {"layer": 1, "readout": "plain/mean/raw/keep/corpus", "center_on": texts},
        "neox": {"layer": 1, "readout": "one-word/last/applied", "normalize": True},
    }
    for kind, options in ways.items():
        folder = work / f"export-{kind}"
        layerscope.export(tiny(work, kind), out=folder, **options)
        found.vectors(kind, folder_vectors(folder, texts))
        files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.onnx"))
        found.choice(kind, "onnx", files)


@row
def gguf(work: Path, found: Recorder) -> None:
    """A GGUF file: its settings, and the norms of its tensors."""
    import gguf as library

    import layerscope

    folder = work / "export"
    layerscope.export(
        tiny(work, "llama"), 2, readout="plain/mean/applied", out=folder, formats=["gguf"]
    )
    reader = library.GGUFReader(str(folder / "gguf" / "model.gguf"))
    for tensor in reader.tensors:
        data = np.array(tensor.data, dtype=np.float64)
        found.choice("shapes", tensor.name, data.shape)
        found.number("norms", tensor.name, np.linalg.norm(data))
    for name, part in reader.fields.items():
        value = part.contents()
        if not isinstance(value, list) and name not in ("general.name", "GGUF.kv_count"):
            found.choice("settings", name, value)


@row
def embed_tiny(work: Path, found: Recorder) -> None:
    """`embed`, `search` and the comparison of two models."""
    import layerscope

    model, other = tiny(work, "llama"), tiny(work, "bert")
    texts = make_texts(40)
    data = write_table(work / "texts.csv", text=texts, number=range(40))
    out = layerscope.embed(
        model, data, work / "vectors.parquet", column="text", layers=[1, 2], progress=False
    )
    table = pd.read_parquet(out)
    found.choice("columns", "names", list(table.columns))
    for name in table.columns:
        if isinstance(table[name].iloc[0], np.ndarray):
            found.vectors(str(name), np.stack(table[name].to_list())[:8])
    hits = layerscope.search(model, texts[3], data, column="text", top=5)
    for i, record in enumerate(hits.to_dict("records")):
        found.choice("search", str(i), record["text"])
        found.number("search", str(i), record["cosine"])
    run = layerscope.compare([model, other], data, column="text", sample=40)
    agreement = run.agreement.to_numpy()
    found.choice("compare", "shape", agreement.shape)
    for i, value in enumerate(agreement.ravel()):
        if isinstance(value, float):
            found.number("compare agreement", str(i), value)


@row
def shapes(work: Path, found: Recorder) -> None:
    """The texts and columns of every shape of file that `--data` accepts."""
    import layerscope

    model = tiny(work, "llama")
    cases = json.loads((SHAPES / "expected.json").read_text(encoding="utf-8"))
    for name, case in cases.items():
        options = case.get("options", {})
        corpus = find("load_corpus")(SHAPES / case["file"], **options)
        found.choice("texts", name, json.dumps(corpus.texts, ensure_ascii=False))
        found.choice("dropped", name, json.dumps(corpus.dropped, sort_keys=True))
        out = work / f"{len(found.choices['texts'])}.parquet"
        layerscope.embed(model, SHAPES / case["file"], out, layers=1, progress=False, **options)
        table = pd.read_parquet(out, dtype_backend="pyarrow").iloc[:, :-1]
        record = {column: [str(cell) for cell in table[column]] for column in table.columns}
        found.choice("columns", name, json.dumps(record, ensure_ascii=False))


@row
def labels_in_files(work: Path, found: Recorder) -> None:
    """Labels in files of several shapes give one choice."""

    model = tiny(work, "llama")
    texts, kinds = make_labeled(45, seed=2)
    frame = pd.DataFrame({"text": texts, "label": kinds})
    frame.to_csv(work / "a.csv", index=False)
    frame.to_csv(work / "b.tsv", index=False, sep="\t")
    frame.to_json(work / "c.jsonl", orient="records", lines=True)
    frame.to_csv(work / "d.csv.gz", index=False, sep=";")
    for name in ("a.csv", "b.tsv", "c.jsonl", "d.csv.gz"):
        choice = select_by_labels(model, work / name)
        found.decision(name, choice)


def main() -> None:
    """Run one row and write what it records."""
    name, folder, out = sys.argv[1:]
    import torch

    import layerscope

    torch.set_num_threads(1)
    work = Path(folder)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    found = Recorder()
    ROWS[name](work, found)
    result = {
        "layerscope": str(Path(layerscope.__file__).resolve()),
        "numbers": found.numbers,
        "choices": found.choices,
    }
    Path(out).write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
