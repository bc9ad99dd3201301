"""The figure of extreme prompts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.studies.shared.drawing import band, colour_key, new_figure, quiet, sequential, subtitle, tame

_TITLES = {"repetition": "Token repetition", "randomness": "Token randomness", "length": "Prompt length"}
_KEYS = {"repetition": "p", "randomness": "p", "length": "tokens"}
_ROWS = {"keep": "prompt entropy (nats)", "drop": "the same without\nthe sink token (nats)"}


def draw(table: pd.DataFrame, manifest: dict[str, Any]) -> Any:
    """A column per condition, a row per sink setting, a colour per level."""
    conditions = list(dict.fromkeys(table["condition"]))
    figure = new_figure(4.0 * len(conditions), 5.6)
    axes = figure.subplots(2, len(conditions), squeeze=False, sharex=True, sharey="row")
    for j, condition in enumerate(conditions):
        held = table[table["condition"] == condition]
        levels = sorted(held["level"].unique())
        for i, sink in enumerate(_ROWS):
            axis = axes[i, j]
            for level, colour in zip(levels, sequential(len(levels)), strict=True):
                rows = held[(held["level"] == level) & (held["sink"] == sink)]
                band(axis, rows.dropna(subset=["value"]), colour)
            quiet(axis)
            if i == 0:
                axis.set_title(_TITLES[condition], fontsize=9, loc="left")
            if j == 0:
                axis.set_ylabel(_ROWS[sink], fontsize=8)
        axes[1, j].set_xlabel("depth (layer / blocks)", fontsize=8)
        shown = [f"{level:g}" for level in levels]
        colour_key(figure, list(axes[:, j]), shown, _KEYS[condition])
    figure.suptitle(tame(f"{table['model'].iloc[0]}: {subtitle(manifest)}"), fontsize=9)
    return figure
