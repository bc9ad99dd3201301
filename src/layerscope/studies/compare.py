"""Any models against a first one, layer by layer and prompt by prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from layerscope.progress import Progress
from layerscope.studies.base import Option, Request, Result, Study
from layerscope.studies.shared.profiles import CURVES, canonical, profile_of, token_fingerprint
from layerscope.studies.shared.specs import read_specs
from layerscope.studies.shared.valleys import Valleys, profile_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Compare(Study):
    """How the layers of other models differ from those of the first."""

    name: ClassVar[str] = "compare"
    title: ClassVar[str] = "Models against a base, layer by layer"
    paper: ClassVar[str] = "Fig. 2, 10, 13"
    models: ClassVar[tuple[int, int | None]] = (2, None)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("metrics", CURVES, "what is measured at every layer, as `layerscope profile --metrics` takes it"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile each model, then take differences from the first over the same prompts."""
        from layerscope.studies.compare_parts.differences import differences, verdict

        request = canonical(request)
        needed = ["prompt_entropy", "curvature"]
        measured = [*needed, *(m for m in request.options["metrics"] if m not in needed)]
        specs = read_specs(request.models)
        runs = [(spec.label, profile_of(request, spec, measured, bar)) for spec in specs]
        texts = len(request.texts or ())
        valleys = [Valleys.of(run, label, request.seed, texts) for label, run in runs]
        found = [differences(runs[0], other, texts, request.seed) for other in runs[1:]]
        curves = [profile_rows(run, label, kind="value", against=None) for label, run in runs]
        depths = pd.DataFrame([row for v in valleys for row in v.rows(kind="valley", against=None)])
        table = pd.concat([*curves, *(held.table() for held in found), depths], ignore_index=True)
        tokens = [token_fingerprint(request, spec) for spec in specs]
        others = [spec.label for spec, held in zip(specs, tokens, strict=True) if _differ(held, tokens[0])]
        warnings = [f"{label}: {line}" for label, run in runs for line in run.manifest["warnings"]]
        if others:
            warnings.insert(
                0,
                f"{', '.join(others)} cut{'s' * (len(others) == 1)} the texts into other tokens than {specs[0].label} does: the "
                "difference per log of the length takes out the number of tokens, nothing takes out the rest.",
            )
        conventions = {
            "models": {label: run.manifest["model"] for label, run in runs},
            "metrics": runs[0][1].manifest["conventions"]["metrics"],
            "base": specs[0].label,
            "same_tokens": {spec.label: not _differ(held, tokens[0]) for spec, held in zip(specs, tokens, strict=True)},
            "differences": "model minus base, of each prompt, then their mean; layers by depth, on the straight line between two "
            "layers where the numbers of blocks differ",
            "valley": "called one where the low end of its depth's interval is above a tenth of its shoulders",
        }
        return Result(table, verdict(found, valleys, bool(others)), conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Curves above, differences from the base below."""
        from layerscope.studies.compare_parts.figure import draw

        return draw(table, manifest)


def _differ(one: str | None, other: str | None) -> bool:
    """Whether two fingerprints of tokens are known and differ."""
    return one is not None and other is not None and one != other


STUDY = Compare()
