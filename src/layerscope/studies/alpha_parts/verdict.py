"""Which eigenvalues a larger α weighs more, in words."""

from __future__ import annotations

import pandas as pd

from layerscope.studies.shared.wording import lists


def verdict(table: pd.DataFrame, top: float) -> list[str]:
    """The answer first, then the numbers."""
    rising = _monotone(table, "top_weight", 1) and _monotone(table, "entropy", -1)
    out = [
        "Larger α gives the large eigenvalues more weight and the small ones less, so that entropy falls with α: the paper's "
        "remark that small eigenvalues contribute more for larger α is the wrong way round."
        if rising
        else "The weight of the largest eigenvalues does not rise with α throughout; look at the table."
    ]
    held = table[table["sink"] == "keep"].sort_values("alpha")
    for (model, spectrum), rows in held.groupby(["model", "spectrum"], sort=False):
        weight = rows[rows["metric"] == "top_weight"].set_index("alpha")["value"]
        entropy = rows[rows["metric"] == "entropy"].set_index("alpha")["value"]
        picked = _picked(list(weight.index))
        shares = lists(f"{100 * weight[a]:.0f} %" for a in picked)
        nats = lists(f"{entropy[a]:.2f}" for a in picked)
        orders = lists(f"{a:g}" for a in picked)
        out.append(
            f"{model}, {spectrum}: at α = {orders} the largest {100 * top:.0f} % of the eigenvalues weigh {shares}; "
            f"S = {nats} nats."
        )
    return out


def _monotone(table: pd.DataFrame, metric: str, sign: int) -> bool:
    rows = table[table["metric"] == metric].sort_values("alpha")
    return all((sign * g["value"].diff().dropna() >= -1e-9).all() for _, g in rows.groupby(["model", "spectrum", "sink"]))


def _picked(alphas: list[float]) -> list[float]:
    """The least, those nearest to 1 and 2, and the greatest."""
    near = [min(alphas, key=lambda a, x=x: abs(a - x)) for x in (1.0, 2.0)]  # type: ignore[misc]
    return list(dict.fromkeys([alphas[0], *near, alphas[-1]]))
