"""The profile and the evaluation that the page chooses from."""

import layerscope

layerscope.profile("smollm2-135m", "texts.txt", out="runs/my-profile", progress=False)
layerscope.evaluate("smollm2-135m", ["STSBenchmark"], out="runs/my-evaluation", progress=False)
