"""Which linear map should a head be? Closed forms and gradient descent, scored on texts that
nothing was fitted on.

Three tasks, on none of which the penalty was chosen; 1,000 texts to fit on and at most 1,000 others
to score, split as in `heads.py`. The teacher is the prompt; the map is of the plain reading of
layer 10.

    python benchmarks/head_kinds.py --data ../shared/data/mteb --out readings      # minutes on two cores; prints the table
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from heads import KNOWN, split
from sklearn.cross_decomposition import PLSRegression

from layerscope.capture import expand_sites
from layerscope.core.heads import PENALTY, WIDTH, Ridge, make_target, unit
from layerscope.core.templates import get_template
from layerscope.evaluation.encode import TextEncoder
from layerscope.improving.lesson import similarity_loss
from layerscope.models import LoadedModel, load

TASKS = ("MassiveScenarioClassification", "STS16", "StackExchangeClustering")
EPOCHS, BATCH, PATIENCE, RATES, SEEDS = 200, 256, 10, (1e-3, 1e-2), (0, 1)


def vectors(
    model: LoadedModel, texts: list[str], template: str, layer: int, kind: str, length: int
) -> np.ndarray:
    """Vectors (texts, D) of a layer."""
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer == layer]
    encoder = TextEncoder(model, get_template(template), sites, [kind], length)
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    return encoder.run(encoder.read([texts[i] for i in order]), lambda n: None)[0][kind][0][
        np.argsort(order)
    ]


def read(name: str, place: Path, file: Path) -> dict[str, np.ndarray]:
    """Plain vectors of the texts to fit on and to score, the teacher's of the former, today's of
    the latter; kept in a file."""
    if not file.exists():
        model, (task, pool) = load(name), split(place, small=True)
        template, layer, norm = KNOWN[model.n_blocks]["prompt"]
        plain = vectors(
            model, [*pool, *task.texts], "plain", KNOWN[model.n_blocks]["layer"], "mean/applied", 96
        )
        prompted = vectors(model, pool, template, layer, f"last/{norm}", 126)
        today = vectors(model, task.texts, "plain", model.n_blocks, "mean/applied", 96)
        np.savez(
            file, fit=plain[: len(pool)], scored=plain[len(pool) :], prompted=prompted, today=today
        )
    return dict(np.load(file))


# Every fit is from centered vectors (texts, D) and the teacher's (texts, E), centered and of length
# 1, to a matrix (D, K).
def main_directions(rows: np.ndarray, power: float, width: int | None = None) -> np.ndarray:
    """A basis (D, K) of the main directions, each scaled by its standard deviation to a power: −1
    whitens, 0 leaves lengths."""
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    known = sizes[:width] > 1e-6 * sizes[0]
    return directions[:width][known].T * (sizes[:width][known] / sizes[0]) ** power


def ridge(
    x: np.ndarray, y: np.ndarray, inputs: float = 0, targets: float = 0, penalty: float = PENALTY
) -> np.ndarray:
    """Ridge regression onto the target's main directions, with inputs and targets whitened (−1),
    half (−0.5) or not (0)."""
    basis = main_directions(x, inputs) if inputs else np.eye(x.shape[1])
    return basis @ Ridge(x @ basis, y @ main_directions(y, targets, WIDTH), penalty).head().matrix


def reduced_rank(x: np.ndarray, y: np.ndarray, rank: int) -> np.ndarray:
    """Ridge onto the whole target, then the directions that most of what is predicted lies in."""
    matrix = Ridge(x, y).head().matrix
    return matrix @ main_directions(x @ matrix, 0, rank)


def procrustes(
    x: np.ndarray, y: np.ndarray, inputs: float = 0, width: int | None = None
) -> np.ndarray:
    """The orthogonal map nearest to the target, or to its main directions."""
    basis = main_directions(x, inputs) if inputs else np.eye(x.shape[1])
    goal = y if width is None else y @ main_directions(y, 0, width)
    left, _, right = np.linalg.svd((x @ basis).T @ goal, full_matrices=False)
    return basis @ left @ right


def pls(x: np.ndarray, y: np.ndarray, components: int) -> np.ndarray:
    """Partial least squares."""
    with warnings.catch_warnings(
        action="ignore"
    ):  # a component that has not converged to the last digit
        return (
            PLSRegression(components, scale=False, max_iter=30)
            .fit(x, y @ main_directions(y, 0, WIDTH))
            .coef_.T
        )


def descent(x: np.ndarray, y: np.ndarray, seed: int, start: str) -> np.ndarray:
    """Adam on the loss of `improve --train`; the rate and when to stop are those of the least loss
    on a tenth left out."""
    order = np.random.default_rng(seed).permutation(len(x))
    held, rest = order[: len(x) // 10], order[len(x) // 10 :]
    rows, goal = (torch.tensor(given, dtype=torch.float32) for given in (x / x.std(), y))
    drawn = (
        ridge(x[rest], y[rest])
        if start == "ridge"
        else np.random.default_rng(seed).normal(size=(x.shape[1], WIDTH))
    )
    best, found = np.inf, drawn
    for rate in RATES:
        made, losses = torch.Generator().manual_seed(seed), []
        # cosines do not depend on the matrix's size, Adam's steps do
        matrix = torch.tensor(drawn / drawn.std(), dtype=torch.float32, requires_grad=True)
        adam = torch.optim.Adam([matrix], lr=rate)
        for _ in range(EPOCHS):
            losses.append(float(similarity_loss(rows[held] @ matrix, goal[held]).detach()))
            if losses[-1] < best:
                best, found = losses[-1], matrix.detach().numpy().astype(np.float64)
            if min(losses) < min(losses[-PATIENCE:]):
                break
            for some in torch.as_tensor(rest)[torch.randperm(len(rest), generator=made)].split(
                BATCH
            ):
                adam.zero_grad()
                similarity_loss(rows[some] @ matrix, goal[some]).backward()
                adam.step()
    return found


KINDS = {
    "centering alone": lambda x, y: np.eye(x.shape[1]), "ridge, as `improve` fits it": ridge,
    "ridge, ten times the penalty": partial(ridge, penalty=10 * PENALTY),
    **{f"ridge, {side} {much}whitened": partial(ridge, **{side: power})
       for side in ("inputs", "targets") for much, power in (("half ", -0.5), ("", -1))},
    **{f"reduced rank, {rank}": partial(reduced_rank, rank=rank) for rank in (64, 128, 256)},
    "Procrustes, 576 numbers": procrustes,
    **{f"Procrustes, 256 numbers{told}": partial(procrustes, inputs=power, width=WIDTH)
       for told, power in (("", 0), (", inputs half whitened", -0.5), (", inputs whitened", -1))},
    **{f"PLS, {count} components": partial(pls, components=count) for count in (64, 256)},
    **{f"gradient descent from {start}, seed {seed}": partial(descent, seed=seed, start=start)
       for start in ("ridge", "chance") for seed in SEEDS},
}  # fmt: skip


def main() -> None:
    """Read, fit, score, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    for name, place in (("--data", "../shared/data/mteb"), ("--out", "readings")):
        parser.add_argument(name, type=Path, default=Path(place))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    scores, seconds = pd.DataFrame(), pd.DataFrame()
    for name in TASKS:
        kept = read(given.model, given.data / name, given.out / f"{given.model}.{name}.kinds.npz")
        task, mean = split(given.data / name, small=True)[0], kept["fit"].mean(0, dtype=np.float64)
        x, y = kept["fit"] - mean, make_target(kept["prompted"], width=1 << 20)
        for kind, fit in {"today": None, **KINDS}.items():
            start = time.process_time()
            found = kept["today"] if fit is None else (kept["scored"] - mean) @ fit(x, y)
            seconds.loc[kind, name] = time.process_time() - start
            scores.loc[kind, name] = float(
                task.score(torch.tensor(unit(found), dtype=torch.float32)[None])[0]
            )
    table = scores.assign(mean=scores.mean(axis=1), seconds=seconds.mean(axis=1)).rename_axis(
        "kind"
    )
    table.to_csv(given.out / "head-kinds.csv", float_format="%.2f")
    print(f"| kind | {' | '.join(table.columns)} |\n|---|{'---|' * len(table.columns)}")
    print(
        "\n".join(
            f"| {kind} | {' | '.join(f'{value:.2f}' for value in row)} |"
            for kind, row in table.iterrows()
        )
    )


if __name__ == "__main__":
    main()
