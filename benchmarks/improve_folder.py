"""Does the folder of `improve` score what was promised? The same labeled task, by our vectors and
by the folder's.

`improve` chooses a readout of a real model on unlabeled questions (TREC, catalogued) and exports
it. The labels are then used twice, by the same probe on the same draws: on the vectors that the
choice rests on, and on those that plain sentence-transformers gives when it loads the folder. The
two accuracies must agree to 0.05 points.

    python benchmarks/improve_folder.py                 # 150 questions; a few minutes on two cores
    python benchmarks/improve_folder.py --texts 1000 --templates one-word topic
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import layerscope
from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.improving.judging import Panel
from layerscope.selection.judges import ScoredCandidates

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from demo import few_shot_accuracy

TASK = "TrecQuestions"
ALLOWED = 0.05  # points


def prefer(template: str) -> None:
    """Let the judge like one template best, whatever it says: the folder of that template is to be
    looked at."""
    asked = Panel.judge

    def judge(self: Panel, reader: Any, readouts: Any, *given: Any) -> ScoredCandidates:
        found = asked(self, reader, readouts, *given)
        ahead = np.array([2.0 * (readout.template == template) for readout in readouts])[:, None]
        draws = None if found.draws is None else found.draws + ahead[..., None]
        return ScoredCandidates(found.score + ahead, draws, judge=found.judge, facts=found.facts)

    Panel.judge = judge  # type: ignore[method-assign]


def promised_and_found(
    model: str, texts: int, templates: list[str] | None, shots: int, out: Path, **options: Any
) -> dict[str, Any]:
    """Improve, export, and score both ways; accuracies in percent."""
    from sentence_transformers import SentenceTransformer

    labels = {row["text"]: int(row["label"]) for row in TASKS.get(TASK).splits()["train"]}
    length = (
        64 if templates else 128
    )  # the longest of the eight prompts takes 78 tokens before and after a text
    better = layerscope.improve(
        model,
        list(labels),
        out=out,
        sample=texts,
        templates=templates,
        max_length=length,
        **options,
    )
    sampled = better.sampled or {}
    hidden = np.array([labels[text] for text in sampled["texts"]])
    loaded = SentenceTransformer(str(out), device="cpu", local_files_only=True)
    vectors = loaded.encode(sampled["texts"], batch_size=8)
    today, promised, found = (
        few_shot_accuracy(v, hidden, shots=shots)
        for v in (sampled["before"], sampled["after"], vectors)
    )
    ours = sampled["after"] / np.linalg.norm(sampled["after"], axis=1, keepdims=True)
    return {
        "choice": f"layer {better.choice.layer}, {better.choice.readout}",
        "relative_cost": better.manifest["evidence"]["relative_cost"],
        "centered_on": better.manifest["texts"]["centered_on"],
        "today": today,
        "promised": promised,
        "folder": found,
        "difference": abs(promised - found),
        "cosine_distance": float((1 - (ours * vectors).sum(1)).max()),
    }


def main() -> None:
    """Run once and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=150)
    parser.add_argument("--templates", nargs="+", default=["one-word"])
    parser.add_argument("--judge", default="minilm-l6")
    parser.add_argument(
        "--prefer",
        metavar="TEMPLATE",
        help="choose this template whatever the judge says, e.g. topic",
    )
    parser.add_argument(
        "--shots", type=int, default=8, help="labeled examples of each of the six classes"
    )
    given = parser.parse_args()
    if given.prefer:
        prefer(given.prefer)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "better"
        row = promised_and_found(
            given.model, given.texts, given.templates, given.shots, place, judge=given.judge
        )
    print(json.dumps(row, indent=2))
    if row["difference"] > ALLOWED:
        raise SystemExit(
            f"the folder is {row['difference']:.2f} points from what was promised, more than {ALLOWED}."
        )


if __name__ == "__main__":
    main()
