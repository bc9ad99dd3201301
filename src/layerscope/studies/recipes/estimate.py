"""What a recipe will take on this machine: time, memory, downloads. Needs no network and loads no model.

Time = arithmetic of the passes at a rate measured here in a second (a product of matrices), eigenvalues of token matrices at a
cost measured here too, and downloads at an assumed rate. It is meant to tell minutes from hours from days.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from layerscope.capture.batches import CPU_TOKENS, GPU_TOKENS
from layerscope.models.catalogue import catalogue
from layerscope.models.settings import pick_device
from layerscope.spectra import eigvalsh
from layerscope.studies.base import get_study
from layerscope.studies.recipes.read import Recipe, Step
from layerscope.studies.shared.models import Spec, read_specs

DOWNLOAD_RATE = 50e6  # bytes per second: an assumption
_EFFICIENCY = 0.5  # of a large product of matrices, for a model's own products
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
_TEXTS = {"lee": 300}  # texts of a corpus that is used whole
_OVERHEAD = 15.0  # seconds to load a model and write its results


@dataclass(frozen=True)
class Machine:
    """What was measured: floating-point operations per second, and seconds per token matrix of a length."""

    device: str
    flops: dict[str, float]
    eigen: dict[int, float]


@dataclass(frozen=True)
class Cost:
    """Of one step. `unknown` names the models of which nothing is known: they are not in the numbers."""

    step: str
    seconds: float
    memory: float
    download: float
    unknown: list[str]


def measure_machine(device: str | None, dtypes: set[str], lengths: set[int]) -> Machine:
    """Measure this machine for about a second per setting."""
    target = pick_device(device)
    size = 8192 if target.type == "cuda" else 768
    flops = {}
    for name in dtypes:
        dtype = getattr(torch, "bfloat16" if name == "auto" else name)
        a = torch.randn(size, size, device=target, dtype=dtype)
        flops[name] = 2 * size**3 / _seconds(lambda a=a: a @ a, target)
    eigen = {}
    for n in lengths:
        many = 64 if target.type == "cuda" else 2
        rows = torch.randn(many, n, n, device=target, dtype=torch.float32 if target.type == "cuda" else torch.float64)
        gram = rows @ rows.mT
        eigen[n] = _seconds(lambda gram=gram: eigvalsh(gram), target) / many
    return Machine(str(target), flops, eigen)


def _seconds(work: Any, target: torch.device) -> float:
    """Of one call, the best of some."""
    best = float("inf")
    work()
    for _ in range(3):
        begin = time.perf_counter()
        work()
        if target.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


def estimate(recipe: Recipe, machine: Machine) -> list[Cost]:
    """The cost of each step. Models that several steps share are downloaded once."""
    fetched: set[str] = set()
    return [_cost(recipe, step, machine, fetched) for step in recipe.steps]


def facts_of(spec: Spec, known: dict[str, dict[str, int]]) -> dict[str, int] | None:
    """Parameters, blocks and width of a model: from the recipe, the catalogue, or the files on this machine."""
    name = str(spec.model).partition("@")[0]
    if name in known:
        return known[name]
    if name in catalogue():
        entry = catalogue()[name]
        return {"parameters": entry.parameters, "blocks": entry.blocks, "width": entry.width}
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        inside = [path for path in sorted(folder.iterdir()) if (path / "config.json").is_file()] if folder.is_dir() else []
        if not inside:
            return None
        return {**(facts_of(Spec(inside[-1], ""), known) or {}), "checkpoints": len(inside)}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    stored = _BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)
    blocks = config.get("num_hidden_layers") or config.get("n_layer") or 12
    width = config.get("hidden_size") or config.get("n_embd") or config.get("d_model") or 768
    return {"parameters": size // stored, "blocks": blocks, "width": width, "bytes": size}


def _cost(recipe: Recipe, step: Step, machine: Machine, fetched: set[str]) -> Cost:
    study = get_study(step.study)
    options = study.fill(step.options)
    settings = step.settings
    prompts = settings["limit"] or _TEXTS.get(settings["data"], 1000)
    length, dtype = int(settings["max_length"]), str(settings["dtype"])
    seconds = memory = download = 0.0
    unknown = []
    for spec in read_specs(list(step.models)):
        facts = facts_of(spec, recipe.facts)
        if facts is None:
            unknown.append(spec.label)
            continue
        kind = str(spec.options.get("dtype", dtype))
        each = _BYTES.get(kind, 4)
        passes = study.passes(options) * facts.get("checkpoints", 1)
        tokens = prompts * length * passes
        work = 2 * facts["parameters"] + 4 * facts["blocks"] * facts["width"] * length
        seconds += tokens * work / (_EFFICIENCY * machine.flops[kind if kind in machine.flops else dtype])
        # two matrices per prompt and layer: with the sink token and without it
        seconds += 2 * prompts * passes * study.sites(facts["blocks"]) * machine.eigen[length]
        budget = GPU_TOKENS if machine.device.startswith("cuda") else CPU_TOKENS
        memory = max(memory, facts["parameters"] * each + budget * facts["width"] * 4 * 12)
        versions = [f"{spec.model}@{step}" for step in options.get("steps") or ()] or [str(spec.model)]
        seconds += _OVERHEAD * max(len(versions), facts.get("checkpoints", 1))
        if spec.on_hub:
            download += len(set(versions) - fetched) * facts.get("bytes", 2 * facts["parameters"])
            fetched.update(versions)
    return Cost(step.name, seconds + download / DOWNLOAD_RATE, memory, download, unknown)
