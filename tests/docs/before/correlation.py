"""Profiles and evaluations of one model and of three."""

import layerscope

MODELS = {
    "runs": "smollm2-135m",
    "runs/a": "smollm2-135m",
    "runs/b": "gemma3-270m",
    "runs/c": "minilm-l6",
}
for folder, name in MODELS.items():
    layerscope.profile(name, "texts.txt", out=f"{folder}/profile", progress=False)
    scores = "evaluation" if folder == "runs" else "scores"
    layerscope.evaluate(
        name,
        ["STSBenchmark"],
        readouts=["plain/mean/applied", "plain/mean/raw"],
        out=f"{folder}/{scores}",
        progress=False,
    )
