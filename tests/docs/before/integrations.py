"""The profile that the page logs."""

import layerscope

layerscope.profile("smollm2-135m", "texts.txt", out="runs/my-profile", progress=False)
