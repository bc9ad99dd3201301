"""The run whose files the page verifies."""

import layerscope

layerscope.profile(
    "smollm2-135m", "texts.txt", out="runs/profile", metrics=["prompt_entropy"], progress=False
)
