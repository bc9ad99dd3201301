"""The two runs that the page reports on."""

import layerscope

for name in ("a", "b"):
    layerscope.profile("smollm2-135m", texts, out=f"runs/{name}", progress=False)  # noqa: F821
