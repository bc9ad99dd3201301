"""Print, for every label-free rule, the share of the headroom recovered and the worst case, leaving
one family out.

    python -m layerscope_paper.rules            # tables
    python -m layerscope_paper.rules --json     # the same, and every single choice

Reads only the published results inside the package; takes some seconds.
"""

from __future__ import annotations

import json
import sys

import pandas as pd

from layerscope.store.atomic import plain
from layerscope_paper.rules.comparison import compare, coverage, summarize
from layerscope_paper.rules.gains import FAMILIES, judged_models


def main() -> None:
    models = judged_models()
    cases = compare(models)
    table = summarize(cases, FAMILIES)
    calibration = coverage(cases)
    if "--json" in sys.argv[1:]:
        rows = table.astype(object).where(table.notna(), None).to_dict(orient="records")
        choices = [vars(case) for case in cases]
        value = {"rules": rows, "calibration": calibration, "choices": choices}
        print(json.dumps(plain(value), indent=2))
        return
    print(
        "Share of the headroom (per-task best − last) recovered, and (worst model, points). "
        "English scores, equal families."
    )
    print(
        "Ours and the chosen depth are fitted without the family in the column; the other rules "
        "have nothing to fit.\n"
    )
    print(f"{'rule':<44}" + "".join(f"{f:>17}" for f in FAMILIES) + f"{'mean':>8}{'worst':>8}")
    for row in table.to_dict(orient="records"):
        line = f"{row['rule']:<44}"
        for family in FAMILIES:
            cell = "–"
            if pd.notna(row[family]):
                cell = f"{100 * row[family]:.0f} % ({row[f'{family} worst']:+.1f})"
            line += f"{cell:>17}"
        mean = f"{100 * row['mean']:.0f} %" + ("" if row["families"] == len(FAMILIES) else "*")
        print(f"{line}{mean:>8}{row['worst']:>+8.1f}")
    print("\n* over the families that have the metric on the tasks' own data.")
    counts = [f"{family} {sum(m.family == family for m in models)}" for family in FAMILIES]
    print(f"models judged: {', '.join(counts)}")
    print(
        "calibration of `evidence`: the 95 % interval contains the gain on "
        f"{100 * calibration['covered']:.0f} % of {calibration['models']:.0f} models "
        f"({100 * calibration['covered_by_family']:.0f} % with equal families); mean stated risk "
        f"{100 * calibration['mean_risk']:.0f} %, models that lost "
        f"{100 * calibration['lost']:.0f} %; abstained on {calibration['abstained']:.0f}."
    )


if __name__ == "__main__":
    main()
