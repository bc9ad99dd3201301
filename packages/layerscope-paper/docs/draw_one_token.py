"""Measure and draw docs/images/study-one-token.png: two models, each read with and without a
begin-of-text token.

    python packages/layerscope-paper/docs/draw_one_token.py measure     # some minutes
    python packages/layerscope-paper/docs/draw_one_token.py

`measure` writes packages/layerscope-paper/results/one_token.csv. gemma3-270m asks for its license:
set LAYERSCOPE_ACCEPT_LICENSE=gemma3-270m.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
RESULTS = HERE.parents[2] / "packages/layerscope-paper/results/one_token.csv"
TOKENS = 32
TEXTS = 100
PREDICTED = 20
COLUMNS = ("model", "token", "layer", "metric", "sink", "value", "ci_low", "ci_high", "n")
NAMES = {"gemma3-270m": "Gemma 3 270M (base)", "smollm2-135m": "SmolLM2-135M-Instruct"}
READ = (
    ("gemma3-270m", ""),
    ("gemma3-270m", "<bos>"),
    ("smollm2-135m", ""),
    ("smollm2-135m", "<|im_start|>"),
)
DRAWN = {"gemma3-270m": "<bos>", "smollm2-135m": "<|im_start|>"}


def starting_with(tokenizer: Any, token: str) -> Any:
    """Return the tokenizer with this one token before every text, or none."""
    import copy

    from tokenizers import processors

    changed = copy.deepcopy(tokenizer)
    number = changed.convert_tokens_to_ids(token or changed.eos_token)
    changed.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A".strip(), special_tokens=[(token or changed.eos_token, number)]
    )
    return changed


def losses(module: Any, rows: list[list[int]], skip: int) -> list[float]:
    """Return the mean loss of each row's tokens after the first of its text; both models share
    input and output embeddings."""
    import torch

    out = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.inference_mode():
            states = module(ids).last_hidden_state[0, skip:-1]
            logits = states @ module.get_input_embeddings().weight.T
            out.append(float(torch.nn.functional.cross_entropy(logits, ids[0, skip + 1 :])))
    return out


def measure(name: str, token: str) -> pd.DataFrame:
    """One reading: a model with a token in front of every text, or none."""
    import layerscope
    from layerscope.data import load_corpus

    model = layerscope.load(name, device="cpu")
    read = layerscope.wrap(model.module, starting_with(model.tokenizer, token), name=name)
    length = TOKENS + bool(token)  # the same tokens of the text, whatever stands in front
    measured = ["prompt_entropy", "sink_ratio", "sink_first"]
    run = layerscope.profile(
        read, "lee", limit=TEXTS, max_length=length, final_norm="raw", metrics=measured
    )
    table = run.table[run.table["normalization"] == "raw"].assign(model=name, token=token)
    rows = read.tokenize(load_corpus("lee", limit=PREDICTED).texts, length).ids
    loss = {"model": name, "token": token, "layer": read.n_blocks, "metric": "loss", "n": len(rows)}
    loss["value"] = sum(losses(model.module, rows, bool(token))) / len(rows)
    return pd.concat([table[list(COLUMNS)], pd.DataFrame([loss])], ignore_index=True)


def measure_all() -> None:
    """Every reading that the table does not have yet."""
    for name, token in READ:
        have = (
            pd.read_csv(RESULTS, keep_default_na=False)
            if RESULTS.is_file()
            else pd.DataFrame(columns=[*COLUMNS])
        )
        if not len(have[(have["model"] == name) & (have["token"] == token)]):
            pd.concat([have, measure(name, token)], ignore_index=True).to_csv(
                RESULTS, index=False, float_format="%.6g"
            )
            print(name, token, flush=True)


def draw(into: Path = HERE / "images") -> None:
    """One column per model: the largest token above, prompt entropy below."""
    from matplotlib.ticker import MaxNLocator

    from layerscope_paper.drawing import COLORS, new_figure, style_axis

    table = pd.read_csv(RESULTS, keep_default_na=False, na_values=["nan"])
    table[["value", "ci_low", "ci_high"]] = table[["value", "ci_low", "ci_high"]].apply(
        pd.to_numeric, errors="coerce"
    )
    figure = new_figure(10.0, 6.2)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for j, (name, token) in enumerate(DRAWN.items()):
        for i, metric in enumerate(("sink_ratio", "prompt_entropy")):
            axis = axes[i, j]
            for color, read in ((COLORS[0], token), (COLORS[1], "")):
                for sink, style in (("keep", "-"), ("drop", ":")):
                    rows = table[
                        (table["model"] == name)
                        & (table["token"] == read)
                        & (table["metric"] == metric)
                    ]
                    rows = rows[rows["sink"] == sink].sort_values("layer")
                    if not len(rows) or (metric == "sink_ratio" and sink == "drop"):
                        continue
                    label = ("with a token in front" if read else "text alone") + (
                        "" if sink == "keep" else ", without its largest token"
                    )
                    axis.plot(
                        rows["layer"], rows["value"], style, color=color, linewidth=1.6, label=label
                    )
                    axis.fill_between(
                        rows["layer"],
                        rows["ci_low"],
                        rows["ci_high"],
                        color=color,
                        alpha=0.15,
                        linewidth=0,
                    )
            style_axis(axis)
        axes[0, j].set_title(f"{NAMES[name]}, token {token}", fontsize=10, loc="left")
        axes[0, j].set_yscale("log")
        axes[1, j].set_xlabel("layer", fontsize=8)
        axes[1, j].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel("norm of the largest token / median norm", fontsize=8)
    axes[1, 0].set_ylabel("prompt entropy, nats", fontsize=8)
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(
        f"One token, two models: {TEXTS} news texts, the same {TOKENS} tokens of each "
        "with and without a token in front",
        fontsize=9,
    )
    figure.savefig(into / "study-one-token.png", dpi=130)


if __name__ == "__main__":
    if "measure" in sys.argv[1:]:
        measure_all()
    draw()
