"""Views of several sites in one tensor, since many small steps take a GPU longer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from layerscope.metrics import Options, SiteVectors, prepare_rows


def view_of_sites(sites: Sequence[SiteVectors], index: int, options: Options) -> Tensor:
    """Return one prepared view of sites of the same prompts (sites, N, D), float64."""
    rows = options.view_rows
    views = []
    for site in sites:
        grouped, rows = site.in_groups(options.view_rows, options.group)
        views.append(grouped.views_for("views")[:, index])
    return prepare_rows(torch.stack(views).double(), rows)
