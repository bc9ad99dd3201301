"""Dose and response: models trained with a penalty on the entropy of their middle layers, at five
strengths of both signs.

The autoregressive models of `train_interventions.py` (layers 4 to 8 of 12, α = 2), all trained at
once: weights are stacked, so that one step trains every model, and all models of a seed see the
same batches from the same first weights. Training goes on for as many steps as fit: a sink needs
thousands. Whether there is one is measured as it goes: the share of heads in which the first of 64
tokens gets over 30 % of the attention in the mean (as Gu et al. 2024 count; every window begins
with `<s>`), the same over the later of 128 tokens, which is stricter, and the length of its state
over the median token's.

    python benchmarks/train_interventions.py --prepare build/interventions.npz       # once, needs the package index: 13 MB
    python benchmarks/penalty_doses.py --data build/interventions.npz --out OUT      # under ten minutes on an H200, no network
    python benchmarks/penalty_doses.py score WEIGHTS --examples 200 --out OUT    # on a CPU, of kept weights
    python benchmarks/penalty_doses.py table benchmarks/results/doses                # the tables again, from the stored runs
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import interventions_table
import numpy as np
import rows
import torch
import torch.nn.functional as F
import train_interventions as arms
from controlled_set import architectures, training
from controlled_set.text import BOS
from interventions_table import EFFECTS, dose_name
from layer_penalties import middle_layers, token_entropies
from torch import Tensor, nn
from torch import _dynamo as dynamo

from layerscope.core.statistics import spearman

WEIGHTS = (
    0.001,
    0.00316,
    0.01,
    0.0316,
    0.1,
)  # the study of one strength had 0.05, which left the entropy at its floor
SINK, WINDOW = (
    0.3,
    64,
)  # a head has a sink in a text if the first of so many tokens gets more than this in the mean
SIZE = replace(arms.Size(), batch=64, steps=6000)
Weights = dict[str, Tensor]


# --- many models as one
#   ---------------------------------------------------------------------------------------------------------


class Stack:
    """GPT-NeoX models of one shape whose weights lie in one tensor each, a model per row: one pass
    runs them all."""

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        self.config, first = (
            models[0].config,
            dict(models[0].named_parameters()),
        )  # tied weights are named once
        several = [dict(model.named_parameters()) for model in models]
        self.weights: Weights = {
            name: torch.stack([each[name].detach() for each in several]).to(device).requires_grad_()
            for name in first
        }
        width = self.config.hidden_size // self.config.num_attention_heads
        self.turned = int(width * self.config.rope_parameters["partial_rotary_factor"])
        self.rates = 1 / self.config.rope_parameters["rope_theta"] ** (
            torch.arange(0, self.turned, 2, device=device) / self.turned
        )
        self.block, self.head = block, next_token_losses

    def states(self, ids: Tensor, on_first: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """The residual stream (models, texts, tokens, width) after the embedding and each block;
        attention on the first one."""
        table = self.weights["gpt_neox.embed_in.weight"]
        models, texts, tokens = ids.shape
        x = table[torch.arange(models, device=ids.device)[:, None], ids.flatten(1)]
        angles = torch.outer(torch.arange(tokens, device=ids.device), self.rates)
        turn = torch.cat([angles, angles], 1)
        out, shares = [x], []
        for number in range(self.config.num_hidden_layers):
            start = f"gpt_neox.layers.{number}."
            own = {
                name[len(start) :]: w for name, w in self.weights.items() if name.startswith(start)
            }
            if on_first:
                shares.append(attention_on_first(x, own, turn, texts, self.config))
            run = (
                block if on_first else self.block
            )  # what is compiled is for the shape that is trained
            x = run(
                x, own, turn, texts, self.config.num_attention_heads, self.config.layer_norm_eps
            )
            out.append(x)
        return [each.unflatten(1, (texts, tokens)) for each in out], shares

    def losses(self, ids: Tensor, following: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Each model's loss of the next token, and its states."""
        states, _ = self.states(ids)
        last = norm(
            states[-1].flatten(1, 2),
            self.weights,
            "gpt_neox.final_layer_norm",
            self.config.layer_norm_eps,
        )
        return self.head(last, self.weights["gpt_neox.embed_in.weight"], following), states

    def one(self, row: int) -> Weights:
        """The weights of one model, by the names of its own."""
        return {name: w[row].detach().cpu().clone() for name, w in self.weights.items()}


def norm(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    """Every model's own layer norm."""
    return (
        F.layer_norm(x, x.shape[-1:], eps=eps) * weights[f"{name}.weight"][:, None]
        + weights[f"{name}.bias"][:, None]
    )


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """Every model's own linear layer."""
    return torch.baddbmm(weights[f"{name}.bias"][:, None], x, weights[f"{name}.weight"].mT)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary positions on the first features of each head (…, tokens, width)."""
    head, rest = x[..., : turn.shape[1]], x[..., turn.shape[1] :]
    one, two = head.chunk(2, -1)
    return torch.cat([head * turn.cos() + torch.cat([-two, one], -1) * turn.sin(), rest], -1).to(
        x.dtype
    )


def heads_of(
    x: Tensor, own: Weights, turn: Tensor, texts: int, heads: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (models × texts, heads, tokens, width)."""
    joint = linear(norm(x, own, "input_layernorm", eps), own, "attention.query_key_value")
    joint = joint.view(len(x) * texts, -1, heads, joint.shape[-1] // heads).transpose(1, 2)
    query, key, value = joint.chunk(3, -1)
    return rotate(query, turn), rotate(key, turn), value


def block(x: Tensor, own: Weights, turn: Tensor, texts: int, heads: int, eps: float) -> Tensor:
    """One block of every model: attention and the feed-forward part side by side, as GPT-NeoX has
    them."""
    found = F.scaled_dot_product_attention(
        *heads_of(x, own, turn, texts, heads, eps), is_causal=True
    )
    attended = linear(found.transpose(1, 2).reshape(x.shape), own, "attention.dense")
    inner = F.gelu(linear(norm(x, own, "post_attention_layernorm", eps), own, "mlp.dense_h_to_4h"))
    return linear(inner, own, "mlp.dense_4h_to_h") + attended + x


def next_token_losses(last: Tensor, table: Tensor, following: Tensor) -> Tensor:
    """Every model's mean loss of the next token."""
    logits = torch.bmm(last, table.mT)
    each = F.cross_entropy(logits.flatten(0, 1).float(), following.flatten(), reduction="none")
    return each.view(len(last), -1).mean(1)


def attention_on_first(x: Tensor, own: Weights, turn: Tensor, texts: int, config: Any) -> Tensor:
    """What each token gives the first one: (models, texts, heads, tokens)."""
    query, key, _ = heads_of(x, own, turn, texts, config.num_attention_heads, config.layer_norm_eps)
    scores = query.float() @ key.float().mT / math.sqrt(query.shape[-1])
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return scores.masked_fill(ahead, -math.inf).softmax(-1)[..., 0].unflatten(0, (len(x), texts))


@torch.no_grad()
def sinks(stack: Stack, held: Tensor, size: arms.Size) -> dict[str, np.ndarray]:
    """Per model: heads with a sink and, more strictly, all tokens asked; blocks' attention on the
    first token; its length."""
    ids, _ = training.windows(
        held, min(16, size.batch), size.length, torch.Generator().manual_seed(3)
    )
    models = len(stack.weights["gpt_neox.embed_in.weight"])
    states, shares = stack.states(ids.expand(models, *ids.shape), on_first=True)
    lengths = torch.stack([each.float().norm(dim=-1) for each in states], 1)
    ratio = (lengths[..., 0] / lengths.median(-1).values).mean(-1)
    given = torch.stack(shares, 2)  # (models, texts, blocks, heads, tokens)
    later = given[..., 1:].mean((1, -1))
    found = {
        "sink_heads": (given[..., :WINDOW].mean(-1) > SINK).float().mean((1, 2, 3)),
        "sink_heads_strict": (later > SINK).float().mean((1, 2)),
        "attention_first": later.mean(-1),
        "first_ratio": ratio,
    }
    return {name: value.cpu().numpy() for name, value in found.items()}


# --- training
#   -------------------------------------------------------------------------------------------------------------------


def all_jobs(weights: Sequence[float], seeds: int) -> list[arms.Job]:
    """Every seed without a penalty, and with each strength of both signs."""
    names = ["none", *(dose_name(effect, weight) for effect in EFFECTS for weight in weights)]
    return [arms.Job("ar", name, seed) for seed in range(seeds) for name in names]


def drawn(
    stream: Tensor, plan: training.Plan, seeds: Sequence[int], ahead: int = 250
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of `training.windows` for each seed (seeds, texts, tokens), drawn ahead: a GPU
    need not wait."""
    draws = [torch.Generator().manual_seed(seed + 1) for seed in seeds]
    following, shape = torch.arange(plan.length, device=stream.device), (plan.batch,)
    while True:
        starts = [
            [torch.randint(0, len(stream) - plan.length, shape, generator=d) for d in draws]
            for _ in range(ahead)
        ]
        for each in torch.stack([torch.stack(several) for several in starts]).to(stream.device):
            rows = stream[each[..., None] + following].long()
            yield torch.cat([torch.full_like(rows[..., :1], BOS), rows[..., :-1]], -1), rows


def train(
    jobs: Sequence[arms.Job],
    data: arms.Data,
    size: arms.Size,
    device: torch.device,
    end: float,
    compiled: bool,
) -> tuple[Stack, int, list[dict[str, Any]], Tensor]:
    """All models at once: the stack, the steps made, the sinks found on the way, and the last
    losses."""
    plan, blocks = size.plan(0), size.plan(0).blocks
    stack = Stack([
        architectures.build("ar", data.vocabulary, plan.width, blocks, plan.heads, plan.length, job.seed) for job in jobs
    ], device)  # fmt: skip
    if compiled:
        dynamo.config.suppress_errors = (
            True  # a machine without a compiler trains as well, only slower
        )
        stack.block, stack.head = torch.compile(block), torch.compile(next_token_losses)
    signed = torch.tensor(
        [interventions_table.signed_weight(job.arm) for job in jobs], device=device
    )
    some = signed.nonzero().flatten()
    matrices = [
        w for w in stack.weights.values() if w.ndim >= 3
    ]  # a stacked matrix has three dimensions
    vectors = [w for w in stack.weights.values() if w.ndim < 3]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda"
    )
    seeds = sorted({job.seed for job in jobs})
    batches = drawn(data.train, plan, seeds)
    which = torch.tensor([seeds.index(job.seed) for job in jobs], device=device)
    autocast = (
        torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()
    )
    penalized, curve, losses = middle_layers(blocks), [], torch.zeros(len(jobs))
    everything, step, warm, started = [*matrices, *vectors], 0, 20, 0.0

    def look() -> None:
        found = sinks(stack, data.held_out, size)
        curve.append({"step": step, "sink_heads": found["sink_heads"].tolist(), "strict": found["sink_heads_strict"].tolist(),
                      "longest": found["first_ratio"].max(1).tolist(), "loss": losses.tolist()})  # fmt: skip

    while step < plan.steps:
        if (
            step == warm and device.type == "cuda"
        ):  # how many steps fit is known before the rate has moved far
            torch.cuda.synchronize()
            started = time.perf_counter()
        if step == 3 * warm and device.type == "cuda":
            torch.cuda.synchronize()
            each = (time.perf_counter() - started) / (2 * warm)
            fits = step + int(0.97 * (end - time.perf_counter()) / each) // 50 * 50
            print(
                f"{1000 * each:.1f} ms per step of {len(jobs)} models: {min(fits, plan.steps)} steps",
                flush=True,
            )
            plan = replace(plan, steps=max(3 * warm + 1, min(fits, plan.steps)))
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        ids, following = (side[which] for side in next(batches))
        with autocast:
            own, states = stack.losses(ids, following)
            loss = own.sum()
            if len(some):
                for layer in penalized:
                    values = token_entropies(states[layer][some].flatten(0, 1)).view(len(some), -1)
                    loss = loss + (signed[some] * values.mean(1)).sum() / len(penalized)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip([weight.grad for weight in everything if weight.grad is not None])
        optimizer.step()
        step += 1
        if step % 500 == 0 or step == plan.steps:
            losses = own.detach().float().cpu()
            look()
            none = [i for i, job in enumerate(jobs) if job.arm == "none"]
            shown = curve[-1]
            print(
                f"step {step}: without a penalty loss {float(losses[none].mean()):.3f}, heads with a sink "
                f"{100 * np.mean([shown['sink_heads'][i] for i in none]):.0f} % (strictly "
                f"{100 * np.mean([shown['strict'][i] for i in none]):.0f} %), the first token's state "
                f"{np.mean([shown['longest'][i] for i in none]):.1f} times as long as the median's",
                flush=True,
            )
            if not torch.isfinite(losses).all():
                print(
                    "not finite: "
                    + ", ".join(
                        f"{j.arm} {j.seed}" for j, v in zip(jobs, losses, strict=True) if v != v
                    )
                )
    return stack, step, curve, losses


@torch.no_grad()
def clip(grads: Sequence[Tensor], most: float = 1.0) -> None:
    """Each model's gradients to a norm of `most`, as `clip_grad_norm_` does for one model."""
    total = torch.stack([grad.flatten(1).float().square().sum(1) for grad in grads]).sum(0).sqrt()
    factor = (most / (total + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor.view(-1, *[1] * (grad.ndim - 1)).to(grad.dtype))


# --- scoring
#   --------------------------------------------------------------------------------------------------------------------


def score(job: arms.Job, size: arms.Size, file: Path) -> dict[str, Any]:
    """One model's scores, by the measures of the study of one strength."""
    assert arms._READY is not None
    data, device = arms._READY
    torch.set_float32_matmul_precision("highest")
    plan = size.plan(job.seed)
    model = architectures.build(
        "ar", data.vocabulary, plan.width, plan.blocks, plan.heads, plan.length, job.seed
    )
    model.load_state_dict(torch.load(file, weights_only=True), strict=False)
    model.to(device)
    held = training.held_out_loss("ar", model, data.held_out, plan, nullcontext())
    return {"held_out_loss": held, **arms.evaluate(job, model, data)}


def ready(file: Path, size: arms.Size, threads: int) -> None:
    """In each worker, once: its share of the cores, and the data."""
    torch.set_num_threads(threads)
    arms._start(file, size)


def described(
    job: arms.Job,
    steps: int,
    size: arms.Size,
    own: dict[str, Any],
    found: dict[str, np.ndarray],
    i: int,
) -> dict[str, Any]:
    """A run as it is kept: what was scored, and the sinks of the i-th model."""
    own["layers"]["first_ratio"] = found["first_ratio"][i].tolist()
    return {
        **asdict(job), "weight": interventions_table.signed_weight(job.arm), "steps": steps, "batch": size.batch,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU",
        "sink_heads": float(found["sink_heads"][i]), "sink_heads_strict": float(found["sink_heads_strict"][i]),
        "attention_first": found["attention_first"][i].tolist(),
        "date": time.strftime("%Y-%m-%d"), "commit": rows.commit(), **own,
    }  # fmt: skip


@torch.no_grad()
def measure_kept(
    folder: Path, options: argparse.Namespace, size: arms.Size
) -> list[dict[str, Any]]:
    """What a CPU can say of models kept as weights (files of {number: weights} in the order of
    `all_jobs`): all at once.

    Loss, entropy and sinks of `rows` held-out windows; at the middle and the last layer a probe of
    TREC's questions, similarity, and texts found again without some of their words.
    """
    device, jobs, plan = torch.device("cpu"), all_jobs(options.weights, options.seeds), size.plan(0)
    data = arms.read(options.data, size, device)
    kept: dict[int, Weights] = {}
    for file in sorted(folder.glob("*.pt")):
        kept |= torch.load(file, weights_only=True)
    models = []
    for i, job in enumerate(jobs):
        models.append(
            architectures.build(
                "ar", data.vocabulary, plan.width, plan.blocks, plan.heads, plan.length, job.seed
            )
        )
        models[-1].load_state_dict(
            {name: weight.float() for name, weight in kept[i].items()}, strict=False
        )
    stack, middle = Stack(models, device), middle_layers(plan.blocks)
    ids, following = training.windows(
        data.held_out, options.rows, size.length, torch.Generator().manual_seed(1)
    )
    losses, states = stack.losses(
        ids.expand(len(jobs), *ids.shape), following.expand(len(jobs), *ids.shape)
    )
    few = [states[k][:, :8] for k in middle]
    entropy = torch.stack(
        [token_entropies(x.flatten(0, 1), alpha=1).view(len(jobs), -1).mean(1) for x in few]
    ).mean(0)
    del states
    found = sinks(stack, data.held_out, replace(size, batch=min(8, options.rows)))
    table = [
        {"arm": job.arm, "weight": interventions_table.signed_weight(job.arm), "seed": job.seed, "steps": options.steps,
         "held_out_loss": float(losses[i]), "middle_entropy": float(entropy[i]),
         **{name: 100 * float(found[name][i].mean()) for name in ("sink_heads", "sink_heads_strict", "attention_first")},
         "first_longest": float(found["first_ratio"][i].max())}
        for i, job in enumerate(jobs)
    ]  # fmt: skip
    interventions_table.write_table(table, options.out / "doses.csv")
    print("loss, entropy and sinks are written", flush=True)
    train_ids, train_labels, test_ids, test_labels = data.classes["TrecQuestions"]
    documents, first, second, judged = data.pairs

    def pooled(one: Stack, texts: Sequence[list[int]]) -> np.ndarray:
        """Mean vectors (layers, texts, width) after each block."""
        most = max(map(len, texts))
        padded = torch.tensor(
            [[*text, *[0] * (most - len(text))] for text in texts]
        )  # what follows a text does not change it
        inside = torch.tensor([[k < len(text) for k in range(most)] for text in texts])[
            None, :, :, None
        ]
        states, _ = one.states(padded[None])
        return np.stack(
            [((x * inside).sum(2) / inside.sum(2))[0].double().numpy() for x in states[1:]]
        )

    for i, model in enumerate(models):
        one, cut = Stack([model], device), len(train_ids)
        questions = pooled(one, [*train_ids, *test_ids])
        unit, whole, dropped = (
            arms._unit(pooled(one, texts)) for texts in (documents, *data.found)
        )
        near = (unit[:, first] * unit[:, second]).sum(-1)
        scores = {
            "probe": [arms.probe(x[:cut], train_labels, x[cut:], test_labels) for x in questions],
            "similarity": spearman(near, np.tile(judged, (len(near), 1))),
            "found_again": [arms.found_again(*both) for both in zip(whole, dropped, strict=True)],
        }
        for name, values in scores.items():
            table[i][f"{name}_middle"] = 100 * float(np.mean([values[k - 1] for k in middle]))
            table[i][f"{name}_last"] = 100 * float(values[-1])
        interventions_table.write_table(
            table[: i + 1],
            options.out / "doses.csv" if i + 1 == len(jobs) else options.out / "part.csv",
        )
        print(f"{i + 1} of {len(jobs)}: {jobs[i].arm} {jobs[i].seed}", flush=True)
    return table


def run(options: argparse.Namespace, size: arms.Size) -> list[dict[str, Any]]:
    """Train all, score all; every run with its sinks."""
    began = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    pool = None
    if options.workers > 1:  # they read the data while the models train
        threads = max(1, (os.cpu_count() or 1) // (options.workers + 1))
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(
                threads
            )  # read when a worker imports numpy, whose threads torch does not set
        pool = ProcessPoolExecutor(
            options.workers, mp.get_context("spawn"), ready, (options.data, size, threads)
        )
        waking = [pool.submit(time.sleep, 0.1) for _ in range(options.workers)]
    jobs = all_jobs(options.weights, options.seeds)
    data = arms.read(options.data, size, device)
    if pool is not None:
        for one in waking:
            one.result()
    print(f"{time.perf_counter() - began:.0f} s: {len(jobs)} models", flush=True)
    end = began + 60 * options.minutes - options.scoring
    stack, steps, curve, losses = train(jobs, data, size, device, end, options.compile)
    trained = time.perf_counter() - began
    (options.out / "curve.json").write_text(
        json.dumps({"jobs": [asdict(job) for job in jobs], "curve": curve}) + "\n"
    )
    found = sinks(stack, data.held_out, size)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i in range(len(jobs)):
            files.append(Path(folder) / f"{i}.pt")
            torch.save(stack.one(i), files[-1])
        del stack
        if pool is None:
            arms._READY = (data, device)
            scored = (score(job, size, file) for job, file in zip(jobs, files, strict=True))
        else:
            scored = pool.map(score, jobs, [size] * len(jobs), files)
        for i, (job, own) in enumerate(zip(jobs, scored, strict=True)):
            curves = {
                str(c["step"]): [c[name][i] for name in ("sink_heads", "strict", "longest", "loss")]
                for c in curve
            }
            runs.append(
                described(job, steps, size, own, found, i)
                | {"train_loss": float(losses[i]), "sink_curve": curves}
            )
            (options.out / "runs.json").write_text(json.dumps(runs) + "\n", encoding="utf-8")
    if pool is not None:
        pool.shutdown()
    print(
        f"trained in {trained:.0f} s, scored in {time.perf_counter() - began - trained:.0f} s",
        flush=True,
    )
    return runs


def main(given: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="*",
        help="`table FOLDER`: only the tables of stored runs; `score FOLDER`: of kept weights",
    )
    parser.add_argument("--data", type=Path, default=Path("build/interventions.npz"))
    parser.add_argument("--out", type=Path, default=Path("build/doses"))
    parser.add_argument("--weights", nargs="+", type=float, default=list(WEIGHTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=SIZE.steps, help="at most; as many as fit into the time"
    )
    parser.add_argument("--workers", type=int, default=7, help="processes that score")
    parser.add_argument("--minutes", type=float, default=9.0, help="all in all")
    parser.add_argument("--scoring", type=float, default=60.0, help="seconds kept for scoring")
    parser.add_argument("--compile", action="store_true", help="torch.compile for the blocks")
    parser.add_argument(
        "--examples", type=int, default=SIZE.examples, help="of a task, to fit on and to score"
    )
    parser.add_argument("--prompts", type=int, default=SIZE.prompts)
    parser.add_argument("--rows", type=int, default=16, help="of `score`: held-out windows")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    options = parser.parse_args(given)
    if options.what[:1] == ["table"]:
        folder = Path(options.what[-1])
        if (folder / "runs.json").exists():
            interventions_table.write_doses(
                json.loads((folder / "runs.json").read_text(encoding="utf-8")), folder
            )
        else:
            interventions_table.tell_doses(folder)
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    options.out.mkdir(parents=True, exist_ok=True)
    size = replace(SIZE, steps=options.steps, examples=options.examples, prompts=options.prompts)
    if options.what[:1] == ["score"]:
        measure_kept(Path(options.what[-1]), options, size)
        interventions_table.tell_doses(options.out)
        return
    if options.smoke:
        size, options.workers = replace(arms.SMOKE, steps=3), min(options.workers, 2)
    runs = run(options, size)
    interventions_table.write_doses(runs, options.out)


if __name__ == "__main__":
    main()
