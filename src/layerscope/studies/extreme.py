"""What happens to every layer when a prompt repeats itself, turns into noise, or grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.progress import Progress
from layerscope.studies.base import Option, Request, Result, Study
from layerscope.studies.shared.profiles import canonical
from layerscope.studies.shared.specs import read_specs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONDITIONS = ("repetition", "randomness", "length")


class Extreme(Study):
    """Prompt entropy under token repetition, token randomness and growing length."""

    name: ClassVar[str] = "extreme"
    title: ClassVar[str] = "Prompt entropy under extreme prompts"
    paper: ClassVar[str] = "Fig. 6, App. F"
    models: ClassVar[tuple[int, int | None]] = (1, 1)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("conditions", list(CONDITIONS), "which of repetition, randomness and length"),
        Option("levels", [0.0, 0.1, 0.25, 0.5, 0.75, 1.0], "probabilities p with which a token is replaced"),
        Option("lengths", [8, 16, 32, 64, 128, 256, 512, 1024], "tokens kept; those above max_length are left out"),
        Option("draws", 1, "how often each prompt is changed, with draws of its own; a prompt's value is their mean"),
        Option("repeat", "one", "one: repetition draws one token per prompt, so that p = 1 repeats it; each: one per place"),
        Option("alpha", 1.0, "order of the entropy"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Measure the model on the prompts as they are and made extreme."""
        from layerscope.studies.extreme_parts.conditions import measure_all
        from layerscope.studies.extreme_parts.verdict import tabulate, undefined, verdict

        _check(request.options)
        request = canonical(request)
        spec = read_specs(request.models)[0]
        model = spec.open(request)
        measured = measure_all(request, model, bar)
        table = tabulate(measured, spec.label, request.seed)
        conventions = {
            "models": {spec.label: model.identity},
            "rows": "centered-unit",
            "alpha": request.options["alpha"],
            "entropy": "in nats, not divided by the log of the length",
            "replaced": "the text's own tokens; what the tokenizer adds stays, and special tokens are never drawn",
            "levels": "one set of draws per prompt serves all levels; intervals over prompts",
            "sink": "the token with the largest norm, found per prompt and layer on states without the final norm",
        }
        return Result(table, verdict(measured, request.seed), conventions, measured.warnings + undefined(measured))

    def passes(self, options: dict[str, Any]) -> float:
        """The plain prompts, each level of the others, and a half of a pass for each length."""
        changed = sum(1 for p in set(options["levels"]) if p > 0) * options["draws"]
        kinds = sum(1 for name in set(options["conditions"]) if name != "length")
        return 1 + changed * kinds + (len(set(options["lengths"])) / 2 if "length" in options["conditions"] else 0)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Entropy against depth, coloured by level: a column per condition, with and without the sink."""
        from layerscope.studies.extreme_parts.figure import draw

        return draw(table, manifest)


def _check(options: dict[str, Any]) -> None:
    for name in options["conditions"]:
        if name not in CONDITIONS:
            raise UnknownNameError("condition", name, CONDITIONS)
    if not options["conditions"]:
        raise LayerscopeError(f"no condition was chosen. Valid: {', '.join(CONDITIONS)}.")
    wrong = [p for p in options["levels"] if not 0 <= p <= 1]
    if wrong or not options["levels"]:
        raise LayerscopeError(f"levels are probabilities from 0 to 1, not {wrong or 'none at all'}.")
    if any(length < 1 for length in options["lengths"]):
        raise LayerscopeError("lengths are numbers of tokens, 1 or more.")
    if options["draws"] < 1:
        raise LayerscopeError(f"draws must be at least 1, not {options['draws']}.")
    if options["repeat"] not in ("one", "each"):
        raise UnknownNameError("repeat", options["repeat"], ["one", "each"])


STUDY = Extreme()
