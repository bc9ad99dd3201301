"""Parts that several benchmarks share: their command lines, clocks and memory, the rows of a task,
and tokenizers and models made up for them."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from layerscope.models import LoadedModel


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's docstring, line by line."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


@cache
def commit() -> str:
    """Return the commit that is checked out; without the history, the variable COMMIT."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get("COMMIT") or head


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def peak_mb(process: int | str = "self") -> float:
    """Return the peak resident memory of a process, in MB.

    It is VmHWM: Linux hands `ru_maxrss` on from the parent.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def run_again(script: str, *words: str) -> float:
    """Run a benchmark in a process of its own, and return the number on its last line."""
    done = subprocess.run(
        [sys.executable, script, *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout.splitlines()[-1])


def read_rows(data_dir: Path | None, task: str, split: str) -> list[dict[str, Any]]:
    """Return a split of a task: of the tasks that need no hub, or of a folder in MTEB's columns."""
    from layerscope.evaluation.tasks import TASKS

    if task in TASKS:
        return list(TASKS.get(task).splits()[split])
    files = sorted(data_dir.glob(f"{task}/{split}*.jsonl.gz")) if data_dir else []
    if not files:
        raise SystemExit(
            f"{task}: no {split} split in {data_dir}. Give --data-dir, or tasks of {', '.join(TASKS)}."
        )
    with gzip.open(files[0], "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def make_tokenizer(texts: list[str], size: int) -> Any:
    """Return a byte-level BPE tokenizer learnt from some texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<pad>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[:500], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


def make_model(
    kind: str, tokenizer: Any, dtype: torch.dtype, device: str, **sizes: int
) -> LoadedModel:
    """Return a model of given sizes with random weights."""
    import torch
    import transformers

    import layerscope

    config = getattr(transformers, f"{kind}Config")(**sizes)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            module = getattr(transformers, f"{kind}Model")(config)
    finally:
        torch.set_default_dtype(before)
    return layerscope.wrap(module.eval().requires_grad_(False), tokenizer, name=kind)
