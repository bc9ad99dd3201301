"""Draw docs/images/training.png: a small model is trained here and now, and its layers are watched.
A few minutes on two cores.

python docs/draw_training.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from layerscope.data.corpus import load_corpus
from layerscope.training import LayerWatch, plot

ROOT = Path(__file__).resolve().parent.parent
STEPS, EVERY, BATCH, LENGTH, HELD_OUT = 300, 20, 16, 128, 32


def rows(texts: list[str]) -> torch.Tensor:
    """Texts as bytes, in rows of equal length; what is over is left out."""
    whole = torch.tensor(list("\n".join(texts).encode()))
    return whole[: len(whole) // LENGTH * LENGTH].view(-1, LENGTH)


def draw() -> Path:
    """Train, measure every `EVERY` steps on texts that are not trained on, draw."""
    torch.manual_seed(0)
    texts = list(load_corpus("lee").texts)
    held_out, training = rows(texts[:40])[:HELD_OUT], rows(texts[40:])
    config = GPTNeoXConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=6, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as scratch:
        watch = LayerWatch(model, held_out, out=Path(scratch) / "layers.csv")
        for step in range(STEPS + 1):
            if step % EVERY == 0:
                watch.measure(step)
            batch = training[torch.randint(len(training), (BATCH,))]
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
        figure = plot(watch)
    out = ROOT / "docs/images/training.png"
    figure.savefig(out, dpi=110)
    print(f"{out}: loss {loss.item():.2f}")
    return out


if __name__ == "__main__":
    draw()
