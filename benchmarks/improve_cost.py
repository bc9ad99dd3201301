"""What `improve` costs beside the passes of its templates: CPU seconds of every stage, and the
ratio to the bare passes.

The bare passes run the model on the same texts under the same templates, in the same batches, with
nothing captured, judged or written. All in CPU seconds of this process and its
children.

    python benchmarks/improve_cost.py      # 250 of TREC's questions: ten minutes
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from common import cpu_seconds, make_parser, read_rows

from layerscope.core.templates import get_template
from layerscope.improving import improve
from layerscope.models import load
from layerscope.vectors.encoder import EncodeRequest, TextEncoder


class Stages:
    """A progress that notes when each stage begins, in CPU seconds."""

    def __init__(self) -> None:
        self.began: list[tuple[str, float]] = [("before the first pass", cpu_seconds())]

    def begin(self, label: str, total: int, done: int = 0) -> None:
        """A stage."""
        self.began.append((label.partition("|")[0].split("/")[0], cpu_seconds()))

    def advance(self, units: int) -> None:
        """Do nothing."""


def bare_passes(model, texts: list[str], templates: dict[str, int]) -> float:  # type: ignore[no-untyped-def]
    """CPU seconds of the passes alone; `templates` says how many of the texts are read under each.

    At most 250 texts of a template are run, spread over their lengths; the time of the others
    follows from their tokens.
    """
    spent = 0.0
    for name, count in templates.items():
        encoder = TextEncoder(model, EncodeRequest(get_template(name), (), (), 64))
        ids = sorted((text.ids for text in encoder.tokenize(texts[:count])), key=len)
        some = ids[:: -(-len(ids) // 250)]
        start = cpu_seconds()
        with torch.inference_mode():
            encoder.runner.run(some, lambda numbers, batch: model.run(batch))
        spent += (cpu_seconds() - start) * sum(map(len, ids)) / sum(map(len, some))
    return spent


def main() -> None:
    """Run once and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=250)
    given = parser.parse_args()
    questions = [row["text"] for row in read_rows(None, "TrecQuestions", "train")]
    model = load(given.model)
    with tempfile.TemporaryDirectory() as folder:
        stages, start = Stages(), cpu_seconds()
        out, store = Path(folder) / "better", Path(folder) / "store"
        result = improve(
            model,
            questions,
            out=out,
            store=store,
            sample=given.texts,
            max_length=64,
            center_on="sample",
            progress=stages,
        )
        total = cpu_seconds() - start
    texts = list(result.sampled.texts)
    names = result.manifest["config"]["templates"]
    chosen = {str(name).split("/")[0] for name in result.table["readout"]}
    bare = bare_passes(
        model, texts, {name: len(texts) if name in chosen else 200 for name in names}
    )
    ends = [*(when for _, when in stages.began[1:]), start + total]
    print(f"{result.choice.readout} at layer {result.choice.layer}")
    for (label, when), end in zip(stages.began, ends, strict=True):
        print(f"{end - when:8.1f} s CPU  {label}")
    print(f"{total:8.1f} s CPU  in all, {total / bare:.2f} × the bare passes ({bare:.1f} s)")


if __name__ == "__main__":
    main()
