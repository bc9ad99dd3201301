"""What watching the layers costs a training run: the share measured by the watch, and the wall time
with and without it.

python benchmarks/training_callback.py --steps 600 --share 0.02
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from layerscope.data import load_corpus
from layerscope.training import LayerWatch


def main() -> None:
    """Train a small model twice on the same batches and print what the watch cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--held-out", type=int, default=8, help="texts")
    parser.add_argument("--length", type=int, default=48, help="tokens of a text")
    parser.add_argument("--out", default=None, help="where the CSV goes")
    given = parser.parse_args()
    texts = load_corpus("lee").texts
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(given.out or scratch) / "layers.csv"
        plain, _ = _train(given, texts, None)
        watched, watch = _train(given, texts, out)
    assert watch is not None
    steps = sorted(watch.table["step"].unique())
    print(
        f"{given.steps} steps; {len(steps)} measurements, at steps {', '.join(map(str, steps)) or 'none'}"
    )
    print(
        f"share by the watch's clocks {100 * watch.spent:.2f} % of a budget of {100 * given.share:g} %"
    )
    print(
        f"wall time {plain:.1f} s without, {watched:.1f} s with: {100 * (watched / plain - 1):+.1f} % (other load adds noise)"
    )


def _train(
    given: argparse.Namespace, texts: list[str], out: Path | None
) -> tuple[float, LayerWatch | None]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=given.width, intermediate_size=3 * given.width, num_hidden_layers=given.blocks,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,
        )
    )  # fmt: skip
    stream = torch.tensor(list(" ".join(texts[:-50]).encode()))
    held = torch.stack(
        [
            torch.tensor(list(t.encode())[: given.length])
            for t in texts[-50:]
            if len(t) > given.length
        ][: given.held_out]
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    model.train()
    begun = time.perf_counter()
    watch = (
        None
        if out is None
        else LayerWatch(model, held, share=given.share, out=out, max_length=given.length)
    )
    for step in range(1, given.steps + 1):
        starts = torch.randint(0, len(stream) - 97, (16,), generator=generator)
        batch = torch.stack([stream[s : s + 96] for s in starts])
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if watch is not None:
            watch.step(step)
    if watch is not None:
        watch.close()
    return time.perf_counter() - begun, watch


if __name__ == "__main__":
    main()
