"""The folder that the page embeds with."""

import layerscope

layerscope.export("smollm2-135m", -1, out="better")
