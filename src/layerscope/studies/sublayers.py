"""What attention, MLP and the residual sums of each block do to entropy and rank, with the sink token and without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.capture import expand_sites
from layerscope.errors import LayerscopeError
from layerscope.metrics import Options
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.store import atomic
from layerscope.studies.base import Option, Request, Result, Study
from layerscope.studies.shared.profiles import canonical, profile_of, runs_elsewhere
from layerscope.studies.shared.sampling import by_layer
from layerscope.studies.shared.specs import Spec, read_specs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SITES = ("embed", "block.*", "block.*.*")


class Sublayers(Study):
    """Prompt entropy and effective rank at every state inside every block."""

    name: ClassVar[str] = "sublayers"
    title: ClassVar[str] = "Which step of a block compresses"
    paper: ClassVar[str] = "Fig. 15"
    models: ClassVar[tuple[int, int | None]] = (1, 1)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (Option("alpha", 1.0, "order of the prompt entropy"),)

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile all sub-sites, then take the steps between them apart."""
        from layerscope.studies.sublayers_parts.steps import block_steps, what_is_missing
        from layerscope.studies.sublayers_parts.verdict import Inside, tabulate, verdict

        request = canonical(request)
        given = read_specs(request.models)[0]
        model = given.open(request)
        parts = {part for taps in model.anatomy.taps for part in taps}
        if not parts:
            raise LayerscopeError(
                f"{given.label} is read as the {model.anatomy.family} family, which names no states inside its blocks. "
                "Studies of whole layers (extreme, compare, scale) work; so does another --family that fits the model."
            )
        spec = given if runs_elsewhere(request) else Spec(model, given.label)
        run = profile_of(
            request, spec, ["prompt_entropy", "effective_rank", "sink_ratio"], bar, SITES, alpha=request.options["alpha"]
        )
        sites = expand_sites(SITES, model.anatomy)
        values = {("prompt_entropy", sink): by_layer(run.prompts, "prompt_entropy", sink).to_numpy() for sink in ("keep", "drop")}
        for sink, held in self._ranks(request, model, sites, bar).items():
            values["prompt_effective_rank", sink] = held
        steps = block_steps(parts, model.anatomy.residual)
        inside = Inside(given.label, sites, steps, model.n_blocks, values)
        table = pd.concat([tabulate(inside, request.seed), _pooled(run.table, given.label)], ignore_index=True)
        told = verdict(inside, request.seed) + [f"This model: {line}" for line in what_is_missing(model.anatomy)]
        conventions = {
            "models": {given.label: model.identity},
            "residual": model.anatomy.residual,
            "rows": "centered-unit",
            "alpha": request.options["alpha"],
            "prompt_effective_rank": "exp of the entropy of σ / Σσ of a prompt's token states, rows as for prompt entropy",
            "effective_rank": "of the mean-pooled prompts",
            "final_norm_where": "on states of the residual stream; branches and norms inside blocks are always raw",
            "sink": "the token with the largest norm, found per prompt and site on states without the final norm",
        }
        return Result(table, told, conventions, run.manifest["warnings"])

    def passes(self, options: dict[str, Any]) -> float:
        """One for the entropies, one for the ranks."""
        return 2.0

    def sites(self, blocks: int) -> int:
        """Up to six in each block."""
        return 1 + 6 * blocks

    def _ranks(self, request: Request, model: LoadedModel, sites: list[Any], bar: Progress) -> dict[str, np.ndarray]:
        """Effective ranks (prompts, sites) of prompts that have tokens, by prompt number; from the work folder if there."""
        from layerscope.studies.sublayers_parts.ranks import SINKS, prompt_ranks

        file = request.work / "prompt-ranks.npz"
        if file.exists():
            with np.load(file, allow_pickle=False) as held:
                return {sink: held[sink] for sink in SINKS}
        assert request.texts is not None
        limit = request.max_length if model.max_length is None else min(request.max_length, model.max_length)
        ids = [row for row in model.tokenize(list(request.texts), limit).ids if len(row)]
        bar.begin("effective rank of prompts|texts", len(ids))
        found = prompt_ranks(model, sites, ids, request.final_norm, Options(), bar)  # type: ignore[arg-type]
        atomic.write_arrays(file, found)
        return found

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """A line per kind of state against depth: entropy and effective rank, with and without the sink."""
        from layerscope.studies.sublayers_parts.figure import draw

        return draw(table, manifest)


def _pooled(profile: pd.DataFrame, label: str) -> pd.DataFrame:
    """Effective rank of the pooled prompts and the sink's size, from the profile."""
    rows = profile[profile["metric"].isin(["effective_rank", "sink_ratio"]) & (profile["normalization"] == "raw")]
    inner = rows["site"].str.extract(r"^block\.(?P<block>\d+)(?:\.(?P<part>\w+))?$")
    part = inner["part"].fillna("output").where(rows["site"] != "embed", "embed")
    block = pd.to_numeric(inner["block"]).astype("Int64")
    held = rows.drop(columns="normalization").assign(model=label, kind="state", step=None, block=block, part=part)
    from layerscope.studies.sublayers_parts.verdict import COLUMNS

    return held[COLUMNS].astype({"layer": "Int64"})


STUDY = Sublayers()
