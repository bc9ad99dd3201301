"""Entropy as a function of its order α, on power-law spectra and on a model's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from layerscope.errors import LayerscopeError
from layerscope.progress import Progress
from layerscope.studies.base import Option, Request, Result, Study
from layerscope.studies.shared.specs import read_specs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Alpha(Study):
    """S_α against α, and which eigenvalues it weighs."""

    name: ClassVar[str] = "alpha"
    title: ClassVar[str] = "Entropy as a function of its order"
    paper: ClassVar[str] = "Fig. 7, App. B"
    models: ClassVar[tuple[int, int | None]] = (0, None)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("exponents", [0.25, 0.5, 1.0, 2.0, 4.0], "β of the power laws λ_i = i^(−β)"),
        Option("size", 1000, "eigenvalues of each power law"),
        Option("alphas", [0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0], "orders α"),
        Option("layers", [-1], "layers of each model; -1 stands for the first, the middle and the last"),
        Option("top", 0.1, "the share of the eigenvalues, largest first, whose weight p^α / Σ p^α is reported"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Power laws first, then each model's prompts."""
        from layerscope.studies.alpha_parts.laws import power_laws
        from layerscope.studies.alpha_parts.prompts import prompt_spectra
        from layerscope.studies.alpha_parts.verdict import verdict

        _check(request.options)
        options = request.options
        frames = [power_laws(options["exponents"], options["size"], options["alphas"], options["top"])]
        models: dict[str, Any] = {}
        for spec in read_specs(request.models):
            frame, models[spec.label] = prompt_spectra(request, spec, bar)
            frames.append(frame)
        table = pd.concat(frames, ignore_index=True)
        conventions = {
            "models": models,
            "rows": "centered-unit",
            "top_weight": f"Σ p^α over the largest {options['top']:.0%} of the eigenvalues / Σ p^α over all that are not zero",
            "sink": "the token with the largest norm, found per prompt and layer on states without the final norm",
        }
        return Result(table, verdict(table, options["top"]), conventions, [])

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Entropy against α, and the weight of the largest eigenvalues."""
        from layerscope.studies.alpha_parts.figure import draw

        return draw(table, manifest)


def _check(options: dict[str, Any]) -> None:
    if not options["alphas"] or any(not a >= 0 for a in options["alphas"]):
        raise LayerscopeError(f"alphas are numbers from 0 on, at least one, not {options['alphas']}.")
    if options["size"] < 2 or any(beta < 0 for beta in options["exponents"]):
        raise LayerscopeError("a power law has at least 2 eigenvalues and an exponent of 0 or more.")
    if not 0 < options["top"] < 1:
        raise LayerscopeError(f"top is a share between 0 and 1, not {options['top']}.")


STUDY = Alpha()
