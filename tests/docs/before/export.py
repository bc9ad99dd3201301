"""The evaluation that the page exports from: its own command needs a folder of tasks."""

import layerscope

layerscope.evaluate(
    "smollm2-135m",
    ["STSBenchmark"],
    readouts=["plain/mean/applied", "one-word/last/raw/keep/corpus"],
    out="runs/sts",
    progress=False,
)
