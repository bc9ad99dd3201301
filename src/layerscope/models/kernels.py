"""The GPU kernels that reading a model needs. On a machine that has none yet, they are compiled while it is being loaded."""

from __future__ import annotations

from contextlib import suppress

from layerscope.capture.normed import KERNELS, source_for
from layerscope.metrics.tokens import gram_kernel
from layerscope.models import activations, norms, rotary
from layerscope.models.loaded import LoadedModel
from layerscope.spectra.cuda import UnusableError, architecture_of, compile_ahead


def reading_kernels(model: LoadedModel) -> list[str]:
    """The source of the kernels that run a model and reduce its states."""
    dtype = model.dtype
    if dtype.itemsize != 2:  # passes in single precision are left as they are
        return [gram_kernel.SOURCE]
    passes = [activations.SOURCE, rotary.source(dtype), norms.source(model.width, dtype)]
    return [*passes, *(source_for(kernel, model.width, dtype) for kernel in KERNELS), gram_kernel.SOURCE]


def compile_for_reading(model: LoadedModel) -> None:
    """Start compiling them: the first texts would wait half a second. Without a GPU this does nothing."""
    if model.device.type == "cuda":
        with suppress(UnusableError, OSError, RuntimeError):  # then the kernels are not used at all
            compile_ahead(reading_kernels(model), architecture_of(model.device.index or 0))
