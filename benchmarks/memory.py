"""Peak memory of a profile as the number of prompts grows: it must stay flat, but for the texts
themselves.

A small model with random weights and made-up texts. Every run is a process of its own; its peak is
VmHWM, read at the end. To see what the texts alone take (a list of strings that the caller holds,
as any caller would), a second process only makes them and loads the same libraries and model. Where
the peak above that grows, `--where` says at which stage of the profile.

    python benchmarks/memory.py                               # 1,000, 10,000 and 100,000 prompts
    python benchmarks/memory.py --prompts 1000 4000 --where
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rows import Row

SETTINGS = {"width": 64, "blocks": 4, "tokens": 16, "views": 2}
METRICS = {
    "tokens": ["prompt_entropy", "curvature", "sink_ratio"],
    "pooled": ["dataset_entropy", "effective_rank"],
    "views": ["infonce", "lidar"],
}


def status_mb(field: str) -> float:
    """VmHWM (peak) or VmRSS (now) of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def make_texts(count: int) -> list[str]:
    """Texts of made-up words; no two are the same."""
    rng = np.random.default_rng(0)
    words = np.array(
        ["".join(rng.choice(list("etaoinshrdlu"), size=rng.integers(2, 8))) for _ in range(500)]
    )
    return [f"{number} " + " ".join(rng.choice(words, size=6)) for number in range(count)]


def make_model():  # type: ignore[no-untyped-def]
    """A small decoder whose tokens are words, with random weights."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    import layerscope

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<pad>"],
        show_progress=False,
    )
    core.train_from_iterator(make_texts(300), trainer)
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=1000, hidden_size=SETTINGS["width"], num_hidden_layers=SETTINGS["blocks"], num_attention_heads=4,
        intermediate_size=2 * SETTINGS["width"], max_position_embeddings=64,
    )  # fmt: skip
    module = transformers.GPTNeoXModel(config).eval()
    return layerscope.wrap(
        module,
        transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>"),
        name="small",
    )


def child(kind: str, prompts: int, levels: list[str], where: bool) -> dict[str, object]:
    """One measurement, in this process."""
    import layerscope

    model, texts = make_model(), make_texts(prompts)
    before = status_mb("VmRSS")
    stages: list[tuple[str, float, float]] = []
    start = time.perf_counter()
    if kind == "profile":
        metrics = [name for level in levels for name in METRICS[level]]
        options = {"views": SETTINGS["views"]} if "views" in levels else {}
        if where:
            _trace(stages)
        with tempfile.TemporaryDirectory() as out:
            layerscope.profile(
                model,
                texts,
                out=Path(out) / "run",
                metrics=metrics,
                max_length=SETTINGS["tokens"],
                progress=False,
                **options,
            )
    return {
        "peak_mb": status_mb("VmHWM"),
        "before_mb": before,
        "seconds": time.perf_counter() - start,
        "stages": [[name, at, peak] for name, at, peak in stages],
    }


def _trace(stages: list[tuple[str, float, float]]) -> None:
    """Note resident memory at the end of each stage, and its peak during it."""
    from layerscope.profiling import job, tables

    high = [0.0]

    def watch() -> None:
        while True:
            high[0] = max(high[0], status_mb("VmRSS"))
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()

    def wrap(owner: object, name: str, stage: str) -> None:
        function = getattr(owner, name)

        def traced(*args, **kwargs):  # type: ignore[no-untyped-def]
            high[0] = 0.0
            result = function(*args, **kwargs)
            now = status_mb("VmRSS")
            stages.append((stage, now, max(high[0], now)))
            return result

        setattr(owner, name, traced)

    wrap(job, "open_items", "reading the texts (Corpus)")
    wrap(job, "make_plan", "planning (make_plan)")
    wrap(job, "encode", "passes (encode)")
    wrap(tables.TableBuilder, "build", "metrics (TableBuilder.build)")
    wrap(tables.PromptTable, "write", "per-prompt table (PromptTable.write)")
    wrap(job.Job, "run_in", "the whole run with its folder (run_in)")


def run_child(kind: str, prompts: int, levels: list[str], where: bool = False) -> dict:  # type: ignore[type-arg]
    """The same in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--child",
        kind,
        "--prompts",
        str(prompts),
        "--levels",
        *levels,
    ]
    done = subprocess.run(
        [*command, *(["--where"] if where else [])], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(prompts: list[int], levels: list[str], where: bool) -> list[dict[str, float]]:
    """Rows of the table, printed as they come."""
    print(
        f"levels: {', '.join(levels)}; {SETTINGS['blocks']} blocks, width {SETTINGS['width']}, {SETTINGS['tokens']} tokens"
    )
    print(
        f"{'prompts':>9} {'texts alone MB':>15} {'profile MB':>11} {'above MB':>9} {'seconds':>8}",
        flush=True,
    )
    rows = []
    for count in prompts:
        alone = run_child("texts", count, levels)
        whole = run_child("profile", count, levels, where)
        above = whole["peak_mb"] - alone["peak_mb"]
        rows.append(
            {
                "prompts": count,
                "texts_mb": alone["peak_mb"],
                "profile_mb": whole["peak_mb"],
                "above_mb": above,
            }
        )
        print(
            f"{count:9,} {alone['peak_mb']:15.0f} {whole['peak_mb']:11.0f} {above:9.0f} {whole['seconds']:8.1f}",
            flush=True,
        )
        for name, now, peak in whole["stages"]:
            print(f"          {name:45} {now:6.0f} MB after, {peak:6.0f} at most", flush=True)
    return rows


def short() -> list[Row]:
    """For `benchmarks/all.py`."""
    few, many = (
        run_child("profile", count, ["tokens", "pooled"])["peak_mb"] for count in (1000, 8000)
    )
    text = f"{(many - few) * 2**20 / 7000:+.0f} bytes per prompt"
    return [
        Row("peak memory of a profile of 8,000 prompts", "1,000 prompts", many, few, "MB", text)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--levels", nargs="+", choices=list(METRICS), default=["tokens", "pooled"])
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--child", choices=["texts", "profile"])
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child, args.prompts[0], args.levels, args.where)))
        return
    rows = measure(args.prompts, args.levels, args.where)
    grown = rows[-1]["above_mb"] - rows[0]["above_mb"]
    each = grown * 2**20 / (rows[-1]["prompts"] - rows[0]["prompts"]) if len(rows) > 1 else 0.0
    print(
        f"from {rows[0]['prompts']:,} to {rows[-1]['prompts']:,} prompts: {grown:+.0f} MB, {each:.0f} bytes per prompt"
    )


if __name__ == "__main__":
    main()
