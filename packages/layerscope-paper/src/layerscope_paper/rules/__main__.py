"""Label-free layer choice, leaving one family out: share of the headroom recovered and worst case,
for every rule.

    python -m layerscope_paper.rules            # tables
    python -m layerscope_paper.rules --json     # the same, and every single choice

Reads only the published results inside the package; takes some seconds.
"""

from __future__ import annotations

import json
import sys

from layerscope.store.atomic import plain
from layerscope_paper.rules.comparison import compare, coverage, summarize
from layerscope_paper.rules.gains import FAMILIES, judged_models


def main() -> None:
    models = judged_models()
    cases = compare(models)
    table = summarize(cases, FAMILIES)
    covered = coverage(cases)
    if "--json" in sys.argv[1:]:
        rows = table.astype(object).where(table.notna(), None).to_dict(orient="records")
        print(
            json.dumps(
                plain({"rules": rows, "calibration": covered, "choices": [vars(c) for c in cases]}),
                indent=2,
            )
        )
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
        cells = [
            "–"
            if row[f] is None or row[f] != row[f]
            else f"{100 * row[f]:.0f} % ({row[f'{f} worst']:+.1f})"
            for f in FAMILIES
        ]
        mean = f"{100 * row['mean']:.0f} %" + ("" if row["families"] == len(FAMILIES) else "*")
        print(
            f"{row['rule']:<44}"
            + "".join(f"{c:>17}" for c in cells)
            + f"{mean:>8}{row['worst']:>+8.1f}"
        )
    print("\n* over the families that have the metric on the tasks' own data.")
    print(
        "models judged: " + ", ".join(f"{f} {sum(m.family == f for m in models)}" for f in FAMILIES)
    )
    print(
        "calibration of `evidence`: the 95 % interval held the gain on "
        f"{100 * covered['covered']:.0f} % of {covered['models']:.0f} models "
        f"({100 * covered['covered_by_family']:.0f} % with equal families); mean risk told "
        f"{100 * covered['mean_risk']:.0f} %, models that lost {100 * covered['lost']:.0f} %; "
        f"abstained on {covered['abstained']:.0f}."
    )


if __name__ == "__main__":
    main()
