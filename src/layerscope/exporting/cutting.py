"""Cutting a model after some blocks, and finding where the cut model gives the wanted state.

The final norm cannot be removed: transformers creates it again on loading, and the reloaded model
would be silently wrong. A state without it is read from `hidden_states` instead. Where that list
holds the state only if another block follows, a block of zeros is added: it adds nothing to the
stream, so that `last_hidden_state` stays the normed state.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture import Capture, expand_sites
from layerscope.errors import ExportError
from layerscope.models import LoadedModel
from layerscope.models.settings import quiet
from layerscope.spectra.execution import full_precision


@dataclass(frozen=True)
class Route:
    """How a reloaded model gives a layer: blocks kept, a block of zeros or none, which of
    `hidden_states` (None: the last)."""

    kept: int
    filler: bool
    index: int | None

    @property
    def blocks(self) -> int:
        """Blocks in the file."""
        return self.kept + self.filler

    @property
    def expression(self) -> str:
        """Where the state is, as a user of transformers would write it."""
        return "last_hidden_state" if self.index is None else f"hidden_states[{self.index}]"


def check_cuttable(model: LoadedModel) -> None:
    """Refuse what cannot be cut before anything is written."""
    from transformers import PreTrainedModel

    module = model.module
    what = type(module).__name__
    if not isinstance(module, PreTrainedModel):
        raise ExportError(
            f"{what} is not a transformers model, and only those can be loaded again without custom code."
        )
    if not isinstance(getattr(module.config, "num_hidden_layers", None), int):
        raise ExportError(
            f"the config of {what} has no num_hidden_layers: it is not known how to cut it."
        )
    if getattr(module.config, "auto_map", None):
        raise ExportError(
            f"{what} needs its own Python code to load; an exported folder must load without it."
        )
    if block_list_path(module, model.anatomy.blocks) is None:
        raise ExportError(
            f"the blocks of {what} are not in one list of modules: it is not known how to cut it."
        )
    if model.tokenizer is None:
        raise ExportError(f"{model.name} has no tokenizer, which an exported folder needs.")


def needs_filler(model: LoadedModel, norm: str) -> bool:
    """Whether a state can be read only if another block follows: one before a final norm that the
    model would apply."""
    return (
        norm == "raw"
        and model.anatomy.final_norm is not None
        and not model.anatomy.family.startswith("mamba")
    )


def write_cut(model: LoadedModel, layer: int, norm: str, folder: Path) -> Route:
    """Write config and weights of the model cut at `layer`, and say where its state is (`norm`:
    `applied` or `raw`)."""
    ids = torch.tensor(model.tokenize(["A short text, read at one layer."], 16).ids)
    mask = torch.ones_like(ids)
    wanted = capture_states(model, layer, norm, ids.to(model.device)).cpu()
    expected = needs_filler(model, norm)
    problems = []
    for filler in (expected, not expected):
        try:
            write_weights(cut(model, layer, filler), folder)
            output = _reload(folder)(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        except (
            Exception
        ) as error:  # an architecture may refuse what others allow, such as no block at all
            if (
                "no space left" in str(error).lower()
            ):  # safetensors tells of a full disk by an error of its own
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            problems.append(
                f"{layer + filler} blocks: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            )
            continue
        index = _find(output, wanted)
        if index != -1:
            return Route(layer, filler, index)
        problems.append(f"{layer + filler} blocks: no state equals the captured one")
    raise ExportError(
        f"{type(model.module).__name__} cannot be cut at layer {layer} ({norm}): {'; '.join(problems)}."
    )


def cut(model: LoadedModel, layer: int, filler: bool) -> nn.Module:
    """A model of the first `layer` blocks, sharing its weights with the whole one; `filler` adds a
    block of zeros."""
    module = model.module
    numbers, blocks = list(range(layer)), list(model.anatomy.blocks[:layer])
    if filler:
        numbers.append(min(layer, model.n_blocks - 1))
        blocks.append(_zeros(model.anatomy.blocks[numbers[-1]]))
    part = with_blocks(model, numbers, blocks)
    if hasattr(module, "pooler"):
        # BERT's pooler belongs to the last layer of the whole model. Left out, loading would make a
        # random one, and say so.
        setattr(part, "pooler", _zero_pooler(part))  # noqa: B010 - the type of a module's attribute is not known
    return part


def capture_states(model: LoadedModel, layer: int, norm: str, ids: Tensor) -> Tensor:
    """The states (texts, tokens, D) of unpadded token ids at a layer, as layerscope captures
    them."""
    site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
    states: list[Tensor] = []
    # not through the one reader: it may pad and split what is given, and these very ids are
    # compared with the cut model's
    final = "applied" if norm == "applied" else "raw"
    # and with all digits, though the user may have asked for TF32: what is compared with it is
    # computed on the CPU
    with (
        full_precision(),
        Capture(
            model.anatomy,
            [site],
            final,  # type: ignore[arg-type]
            lambda _i, _raw, state: states.append(state.clone()),
        ) as capture,
    ):
        capture.run(lambda: model.forward(ids, torch.ones_like(ids)))
    return states[0]


def _find(output: Any, wanted: Tensor) -> int | None:
    """Which state of a model's output is the wanted one: None for the last, −1 for none of them."""
    loose = 1e-4 if wanted.dtype in (torch.float32, torch.float64) else 0.05
    scale = float(wanted.abs().max())

    def same(state: Any) -> bool:
        return (
            isinstance(state, Tensor)
            and state.shape == wanted.shape
            and float((state - wanted).abs().max()) <= loose * scale
        )

    if same(getattr(output, "last_hidden_state", None)):
        return None
    found = [i for i, state in enumerate(output.hidden_states or ()) if same(state)]
    return found[0] if found else -1


def write_weights(part: Any, folder: Path) -> None:
    """Write the config and the weights of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    with quiet():
        part.config.use_cache = False  # nothing is generated with it
        vars(part.config).pop("auto_map", None)  # the class is one that transformers has
        part.save_pretrained(folder, max_shard_size="100GB")


def _reload(folder: Path) -> Any:
    from transformers import AutoModel

    with quiet(), torch.inference_mode():
        module = AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        ).eval()

    def run(**given: Tensor | bool) -> Any:
        with torch.inference_mode():
            return module(**given)

    return run


def _zeros(block: nn.Module) -> nn.Module:
    copied = copy.deepcopy(block)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    return copied


def _zero_pooler(part: nn.Module) -> nn.Module | None:
    pooler: Any = part.pooler
    if not isinstance(pooler, nn.Module):
        config: Any = copy.deepcopy(part.config)
        with quiet():
            pooler = getattr(type(part)(config), "pooler", None)
    return (
        _zeros(pooler).to(next(part.parameters()).dtype) if isinstance(pooler, nn.Module) else None
    )


def with_blocks(model: LoadedModel, numbers: Sequence[int], modules: Sequence[nn.Module]) -> Any:
    """Return a copy of a model that consists of other blocks, `numbers` in the whole one. Weights
    are shared."""
    module = model.module
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    part: Any = copy.deepcopy(module, shared)
    path = block_list_path(module, model.anatomy.blocks)
    assert path is not None
    parent, _, leaf = path.rpartition(".")
    setattr(part.get_submodule(parent) if parent else part, leaf, nn.ModuleList(modules))
    set_blocks(part.config, numbers, model.n_blocks)
    return part


def set_blocks(config: Any, blocks: Sequence[int], of: int) -> dict[str, Any]:
    """Make a config describe some of a model's `of` blocks; returns the values it had before.

    Lists with one entry a block, such as `layer_types`, get the entries of these blocks.
    """
    before = {"num_hidden_layers": config.num_hidden_layers}
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == of and "layer" in name:
            before[name] = value
            setattr(config, name, [value[k] for k in blocks])
    config.num_hidden_layers = len(blocks)
    return before


def block_list_path(module: nn.Module, blocks: Any) -> str | None:
    """The path of the list that holds the blocks."""
    for path, part in module.named_modules():
        if (
            isinstance(part, nn.ModuleList)
            and len(part) >= len(blocks)
            and all(a is b for a, b in zip(part, blocks, strict=False))
        ):
            return path
    return None
