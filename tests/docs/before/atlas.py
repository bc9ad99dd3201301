"""Runs to lay over the published models."""

import layerscope

for out in ("runs/mine", "smol-released"):
    layerscope.profile(
        "smollm2-135m",
        "texts.txt",
        out=out,
        metrics=["prompt_entropy", "curvature"],
        progress=False,
    )
for out in ("runs/scores", "smol-scores"):
    layerscope.evaluate("smollm2-135m", ["STSBenchmark"], out=out, progress=False)
