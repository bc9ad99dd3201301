"""What a few labels of classes add to a head: is a text's nearest neighbor of its class, among
texts whose labels were not used?

python benchmarks/head_labels.py --data ../shared/data/mteb
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import heads
import improve_tasks

from layerscope.capture import expand_sites
from layerscope.core.heads import Head, Ridge, make_target, unit, with_classes
from layerscope.core.templates import get_template
from layerscope.evaluation.encode import TextEncoder
from layerscope.models import LoadedModel, load

TASKS = ("Banking77Classification", "EmotionClassification", "MassiveScenarioClassification")
TEXTS, TESTED, SEEDS = 400, 600, 5


def read(
    model: LoadedModel, template: str, layer: int, kind: str, texts: list[str], length: int = 64
) -> np.ndarray:
    """Vectors (texts, D) at a layer."""
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer == layer]
    encoder = TextEncoder(model, get_template(template), sites, [kind], length)
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    found = encoder.run(encoder.read([texts[i] for i in order]), lambda n: None)[0][kind][0]
    return found[np.argsort(order)]


def right(head: Head, rows: np.ndarray, classes: np.ndarray) -> float:
    """The share whose nearest other is of the same class."""
    vectors = unit(head(rows))
    near = vectors @ vectors.T
    np.fill_diagonal(near, -1)
    return float((classes[near.argmax(1)] == classes).mean())


def main() -> None:
    """A row per task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mteb"))
    args = parser.parse_args()
    model, encoder = load("smollm2-135m"), load("minilm-l6")
    improve_tasks.TEST = 400
    for name in TASKS:
        task, pool = heads.split(args.data / name)
        fit = pool[:TEXTS]
        template, layer, norm = heads.KNOWN[30]["prompt"]
        prompted = read(model, template, layer, f"last/{norm}", fit, 96)
        target = make_target(
            prompted, read(encoder, "plain", encoder.n_blocks, "mean/applied", fit)
        )
        plain = read(model, "plain", 10, "mean/applied", fit)
        labeled = read(model, "plain", 10, "mean/applied", [texts[0] for texts, _ in task.examples])
        classes = np.unique([label for _, label in task.examples], return_inverse=True)[1]
        head, cells = Ridge(plain, target).head(), []
        for count in (32, 64, 128):
            scores = []
            for seed in range(SEEDS):
                order = np.random.default_rng(seed).permutation(len(classes))
                used, tested = order[:count], order[count:][:TESTED]
                own = np.unique(classes[used], return_inverse=True)[1]
                shaped = with_classes(head, plain, labeled[used], own)
                scores.append(
                    [right(one, labeled[tested], classes[tested]) for one in (head, shaped)]
                )
            before, after = 100 * np.mean(scores, axis=0)
            cells.append(f"{before:.1f}, {after:.1f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
