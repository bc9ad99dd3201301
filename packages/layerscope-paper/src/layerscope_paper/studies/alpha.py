"""Study `alpha`: entropy as a function of its order α, and the eigenvalues that α gives weight to.

Computes S_α and the weight p^α / Σ p^α of the largest eigenvalues for power-law spectra λ_i =
i^(−β), and for the token states of a model's prompts at a few layers (means over prompts with
intervals).

Table: a row per spectrum, α, metric and sink setting. Figure: entropy above, weight below, a column
for the power laws and one per model. Verdict: the direction of the effect, then the numbers of
every spectrum.

    layerscope-paper study alpha                                             # power laws only
    layerscope-paper study alpha smollm2-135m --set layers=0,12,30 --limit 30 --max-length 128
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.capture import expand_sites
from layerscope.core.columns import VALUE, names
from layerscope.core.sites import pick_layers
from layerscope.errors import LayerscopeError
from layerscope.metrics import prepare_rows, spectrum_entropy
from layerscope.metrics.entropy import rounding_floor, smaller_gram
from layerscope.progress import Progress
from layerscope.spectra import eigvalsh
from layerscope_paper.drawing import COLORS, escape_math, ordered_colors, plain_log_axis
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import DOTTED, Figure, draw_band, grid, label_axes
from layerscope_paper.studies.shared.models import Request, Spec, read_prompts, read_specs
from layerscope_paper.studies.shared.numbers import in_short, join_words, mean_table

_ALPHAS = [0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0]
COLUMNS = ["model", "spectrum", "layer", "alpha", "metric", "sink", *names(VALUE)]


class Alpha(Study):
    """S_α against α, and the weight of the largest eigenvalues."""

    name = "alpha"
    title = "Entropy as a function of its order"
    models = (0, None)
    options = (
        Option(
            "exponents", [0.25, 0.5, 1.0, 2.0, 4.0], "β of the power laws λ_i = i^(−β)", least=0
        ),
        Option("size", 1000, "number of eigenvalues of each power law", least=2),
        Option("alphas", _ALPHAS, "orders α of the entropy", least=0, filled=True),
        Option("layers", [-1], "layers of each model; -1: the first, the middle and the last"),
        Option(
            "top",
            0.1,
            "share of the largest eigenvalues whose weight p^α / Σ p^α is reported",
            least=0,
            most=1,
        ),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Measure power laws first, then each model's prompts."""
        options = request.options
        frames = [
            power_laws(options["exponents"], options["size"], options["alphas"], options["top"])
        ]
        models: dict[str, Any] = {}
        for spec in read_specs(request.models):
            frame, models[spec.label] = prompt_spectra(request, spec, bar)
            frames.append(frame)
        table = pd.concat(frames, ignore_index=True)
        conventions = {
            "models": models,
            "rows": "centered-unit",
            "top_weight": (
                f"Σ p^α over the largest {options['top']:.0%} of the eigenvalues / Σ p^α over all "
                "that are not zero"
            ),
            "sink": (
                "the token with the largest norm, found per prompt and layer on states without the "
                "final norm"
            ),
        }
        return Result(table, verdict(table, options["top"]), conventions, [])

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw entropy against α, and the weight of the largest eigenvalues."""
        names = list(dict.fromkeys(table["model"]))
        figure, axes = grid(2, len(names), 3.6 * len(names) + 0.6, 5.4, sharex=True)
        top = manifest["options"]["top"]
        row_of = {"entropy": 0, "top_weight": 1}
        for j, name in enumerate(names):
            curves = table[table["model"] == name].groupby(
                ["spectrum", "metric", "sink"], sort=False
            )
            spectra = list(dict.fromkeys(spectrum for (spectrum, _, _), _ in curves))
            palette = COLORS if j else ordered_colors(len(spectra))
            colors = dict(zip(spectra, palette, strict=False))
            for (spectrum, metric, sink), curve in curves:
                look: dict[str, Any] = {"label": spectrum}
                if sink == "drop":
                    look = {"linestyle": DOTTED, "linewidth": 1.2}
                draw_band(axes[row_of[metric], j], curve, colors[spectrum], x="alpha", **look)
            axes[0, j].legend(fontsize=7, frameon=False)
            axes[1, j].set_ylim(0, 1.03)
            for axis in axes[:, j]:
                plain_log_axis(axis)
                axis.axvline(1, color="grey", linewidth=0.6, alpha=0.6)
        units = [
            "entropy S_α (nats)",
            f"weight of the largest {100 * top:.0f} %\nof the eigenvalues",
        ]
        label_axes(
            axes, [escape_math(name) for name in ("Power laws λᵢ = i^(−β)", *names[1:])], units, "α"
        )
        if len(names) > 1:
            figure.suptitle(
                "dotted: sink token dropped; bands: 95 %", fontsize=8, x=0.99, ha="right"
            )
        return figure


def top_weight(eigenvalues: Tensor, alpha: float, share: float) -> Tensor:
    """Return the weight p^α / Σ p^α of the largest `share` of the nonzero eigenvalues (at least
    one), along the last dimension.

    >>> round(float(top_weight(torch.tensor([3.0, 1.0]), 1.0, 0.5)), 6)
    0.75
    """
    lam = eigenvalues.clamp(min=0).sort(dim=-1, descending=True).values
    present = lam > rounding_floor(lam)
    logs = torch.where(present, lam, 1.0).log()
    powers = torch.where(present, torch.exp(alpha * (logs - logs.amax(-1, keepdim=True))), 0.0)
    count = (share * present.sum(-1, keepdim=True)).round().clamp(min=1)
    rank = torch.arange(1, lam.shape[-1] + 1)
    return torch.where(rank <= count, powers, 0.0).sum(-1) / powers.sum(-1)


def power_laws(
    exponents: Sequence[float], size: int, alphas: Sequence[float], top: float
) -> pd.DataFrame:
    """Return entropy and top weight of λ_i = i^(−β), by β and α."""
    rows: list[dict[str, Any]] = []
    for beta in exponents:
        spectrum = torch.arange(1, size + 1, dtype=torch.float64) ** -beta
        for alpha in alphas:
            setting = {"spectrum": f"β = {beta:g}", "alpha": alpha}
            for metric, value in measures(spectrum, alpha, top).items():
                rows.append({**setting, "metric": metric, "value": value})
    table = pd.DataFrame(rows).reindex(columns=COLUMNS)
    return table.assign(model="power law", sink="keep", n=1)


def measures(spectrum: Tensor, alpha: float, top: float) -> dict[str, float]:
    """Return entropy and top weight of one spectrum."""
    return {
        "entropy": float(spectrum_entropy(spectrum, alpha)),
        "top_weight": float(top_weight(spectrum, alpha, top)),
    }


def prompt_spectra(
    request: Request, spec: Spec, bar: Progress
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return entropy and top weight at every chosen layer and α: means over prompts, with
    intervals."""
    assert request.texts is not None
    model = spec.open(request)
    last = model.n_blocks
    layers = [0, last // 2, last]
    if request.options["layers"] not in ([], [-1]):
        layers = pick_layers(request.options["layers"], last, spec.label)
    tokens = model.tokenize(list(request.texts.texts), request.max_length)
    prompts = [ids for ids in tokens.ids if len(ids) > 2]
    if not prompts:
        raise LayerscopeError(
            "every text has fewer than three tokens, too few for a spectrum: give longer texts."
        )
    alphas = request.options["alphas"]
    top = request.options["top"]
    measured: dict[tuple[int, float, str, str], np.ndarray] = {}
    bar.begin(f"{spec.label}|prompts", len(prompts))
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer in layers]

    def look(prompt: int, index: int, raw: Tensor, state: Tensor) -> None:
        rows = state.double().cpu()
        layer = sites[index].layer
        sink_token = int(torch.linalg.vector_norm(raw.double(), dim=-1).argmax())
        others = rows[torch.arange(len(rows)) != sink_token]
        for sink, states in (("keep", rows), ("drop", others)):
            spectrum = eigvalsh(smaller_gram(prepare_rows(states, "centered-unit")))
            for alpha in alphas:
                for metric, value in measures(spectrum, alpha, top).items():
                    key = (layer, alpha, metric, sink)
                    measured.setdefault(key, np.full(len(prompts), np.nan))[prompt] = value
        bar.advance(index == len(sites) - 1)

    read_prompts(model, sites, prompts, request.final_norm, look)
    keys = ["layer", "alpha", "metric", "sink"]
    settings = [
        ({"spectrum": f"layer {key[0]}", **dict(zip(keys, key, strict=True))}, measured[key])
        for key in measured
    ]
    table = mean_table(settings, request.seed, COLUMNS).assign(model=spec.label)
    return table.sort_values("layer", kind="stable"), model.identity


def verdict(table: pd.DataFrame, top: float) -> list[str]:
    """Return the answer, then the numbers of every spectrum."""
    answer = "the weight of the largest eigenvalues does not rise with α everywhere; see the table"
    if _monotone(table, "top_weight", 1) and _monotone(table, "entropy", -1):
        answer = (
            "larger α gives the large eigenvalues more weight and the small ones less, so that "
            "entropy falls with α: the paper's remark that small eigenvalues contribute more for "
            "larger α is the wrong way round"
        )
    out = [in_short(answer)]
    with_sink = table[table["sink"] == "keep"]
    # in the table's order: by β, by layer
    for (model, spectrum), rows in with_sink.groupby(["model", "spectrum"], sort=False):
        wide = rows.pivot(index="alpha", columns="metric", values="value")
        wide = wide.loc[_examples(list(wide.index))]
        orders = join_words(f"{alpha:g}" for alpha in wide.index)
        shares = join_words(f"{100 * weight:.0f} %" for weight in wide["top_weight"])
        nats = join_words(f"{entropy:.2f}" for entropy in wide["entropy"])
        out.append(
            f"{model}, {spectrum}: at α = {orders} the largest {100 * top:.0f} % of the "
            f"eigenvalues weigh {shares}; S = {nats} nats."
        )
    return out


def _monotone(table: pd.DataFrame, metric: str, sign: int) -> bool:
    """Return True if a metric always rises (sign 1) or falls (sign −1) with α."""
    rows = table[table["metric"] == metric].sort_values("alpha")
    return all(
        (sign * g["value"].diff().dropna() >= -1e-9).all()
        for _, g in rows.groupby(["model", "spectrum", "sink"])
    )


def _examples(alphas: list[float]) -> list[float]:
    """Return the smallest order, those nearest to 1 and 2, and the largest."""
    near_one = min(alphas, key=lambda alpha: abs(alpha - 1.0))
    near_two = min(alphas, key=lambda alpha: abs(alpha - 2.0))
    return list(dict.fromkeys([alphas[0], near_one, near_two, alphas[-1]]))


STUDY = Alpha()
