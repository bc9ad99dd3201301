"""A model cut after some blocks, and where the cut model gives the state of a layer.

The final norm cannot be removed: transformers creates it again on loading, and the reloaded model
would be silently wrong. A state without it is read from `hidden_states` instead. Where that list
holds the state only if another block follows, a block of zeros is added. It adds nothing to the
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

from layerscope.capture import Capture, FinalNorm, expand_sites
from layerscope.capture.hooks import apply_norm
from layerscope.errors import ExportError, one_line
from layerscope.models import LoadedModel
from layerscope.models.settings import quiet
from layerscope.spectra import full_precision


@dataclass(frozen=True)
class Route:
    """The way from a written model to a layer's state.

    `layer` blocks and, with `filler`, a block of zeros are in the file. `index` is the place of the
    state in `hidden_states`; None: it is the last state.
    """

    layer: int
    filler: bool
    index: int | None

    @property
    def blocks(self) -> int:
        """The number of blocks in the file."""
        return self.layer + self.filler

    @property
    def expression(self) -> str:
        """The state as a user of transformers writes it."""
        return "last_hidden_state" if self.index is None else f"hidden_states[{self.index}]"


def check_cuttable(model: LoadedModel) -> None:
    """Raise, before anything is written, for a model that cannot be cut."""
    from transformers import PreTrainedModel

    module = model.module
    kind = type(module).__name__
    problem = ""
    if not isinstance(module, PreTrainedModel) or getattr(module.config, "auto_map", None):
        problem = f"{kind} is not a transformers model, and only those load without custom code."
    elif block_list_path(module, model.anatomy.blocks) is None:
        problem = f"the blocks of {kind} are not in one list of modules, which a cut shortens."
    elif model.tokenizer is None:
        problem = f"{model.name} has no tokenizer, which an exported folder needs."
    if problem:
        raise ExportError(problem)


def needs_filler(model: LoadedModel, norm: str) -> bool:
    """Return whether a state can be read only if another block follows.

    Such is a state before a final norm that the model would apply.
    """
    has_norm = model.anatomy.final_norm is not None
    return norm == "raw" and has_norm and not model.anatomy.family.startswith("mamba")


def write_cut(model: LoadedModel, layer: int, norm: str, folder: Path) -> Route:
    """Write the model cut at `layer`; return where its state is (`norm`: `applied` or `raw`)."""
    ids = torch.tensor(model.tokenize(["A short text, read at one layer."], 16).ids)
    expected = capture_states(model, layer, norm, ids.to(model.device)).cpu()
    filler_first = needs_filler(model, norm)
    problem = "no state equals the captured one"
    for filler in (filler_first, not filler_first):
        try:
            write_weights(cut(model, layer, filler), folder)
            output = _reload_and_run(folder, ids)
        except Exception as error:  # an architecture may refuse, for example, to have no block
            if "no space left" in str(error).lower():  # safetensors has its own error for this
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            problem = one_line(str(error))[:200]
            continue
        if _equal(getattr(output, "last_hidden_state", None), expected):
            return Route(layer, filler, None)
        for index, state in enumerate(output.hidden_states or ()):
            if _equal(state, expected):
                return Route(layer, filler, index)
    raise ExportError(
        f"{type(model.module).__name__} cannot be cut at layer {layer} ({norm}): {problem}."
    )


def cut(model: LoadedModel, layer: int, filler: bool) -> nn.Module:
    """Return a model of the first `layer` blocks that shares its weights with the whole one.

    `filler` adds a block of zeros.
    """
    numbers = list(range(layer))
    blocks = list(model.anatomy.blocks[:layer])
    if filler:
        numbers.append(min(layer, model.n_blocks - 1))
        blocks.append(_zeros(model.anatomy.blocks[numbers[-1]]))
    cut_model = with_blocks(model, numbers, blocks)
    if hasattr(model.module, "pooler"):
        # BERT's pooler belongs to the last layer of the whole model. Without one, loading would
        # make one at random and warn of it.
        cut_model.pooler = _zero_pooler(cut_model)
    return cut_model


def capture_states(model: LoadedModel, layer: int, norm: str, ids: Tensor) -> Tensor:
    """Return the captured states (texts, tokens, D) of unpadded token ids at a layer.

    They have all digits, even if the user asked for TF32: they are compared with those of a CPU.
    """
    site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
    final_norm: FinalNorm = "applied" if norm == "applied" else "raw"
    states: list[Tensor] = []

    def keep(_index: int, raw: Tensor, norm: nn.Module | None) -> None:
        states.append(apply_norm(norm, raw).clone())

    with full_precision(), Capture(model.anatomy, [site], final_norm) as capture:
        capture.run(lambda: model.forward(ids, torch.ones_like(ids)), keep)
    return states[0]


def _equal(state: Any, expected: Tensor) -> bool:
    if not isinstance(state, Tensor) or state.shape != expected.shape:
        return False
    tolerance = 1e-4 if expected.dtype in (torch.float32, torch.float64) else 0.05
    difference = float((state - expected).abs().max())
    return difference <= tolerance * float(expected.abs().max())


def write_weights(cut_model: Any, folder: Path) -> None:
    """Write the config and the weights of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob("*.safetensors*"):
        earlier.unlink()
    with quiet():
        cut_model.config.use_cache = False  # nothing is generated with it
        vars(cut_model.config).pop("auto_map", None)  # the class is one that transformers has
        cut_model.save_pretrained(folder, max_shard_size="100GB")


def _reload_and_run(folder: Path, ids: Tensor) -> Any:
    from transformers import AutoModel

    with quiet(), torch.inference_mode():
        module = AutoModel.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        mask = torch.ones_like(ids)
        return module.eval()(input_ids=ids, attention_mask=mask, output_hidden_states=True)


def _zeros(block: nn.Module) -> nn.Module:
    zeros = copy.deepcopy(block)
    with torch.no_grad():
        for parameter in zeros.parameters():
            parameter.zero_()
    return zeros


def _zero_pooler(cut_model: Any) -> nn.Module | None:
    pooler = cut_model.pooler
    if pooler is None:
        with quiet():
            pooler = type(cut_model)(copy.deepcopy(cut_model.config)).pooler
    if pooler is None:
        return None
    return _zeros(pooler).to(next(cut_model.parameters()).dtype)


def with_blocks(model: LoadedModel, numbers: Sequence[int], modules: Sequence[nn.Module]) -> Any:
    """Copy a model with other blocks, `numbers` in the whole one; weights are shared."""
    module = model.module
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    cut_model: Any = copy.deepcopy(module, shared)
    path = block_list_path(module, model.anatomy.blocks)
    assert path is not None
    parent, _, leaf = path.rpartition(".")
    setattr(cut_model.get_submodule(parent), leaf, nn.ModuleList(modules))
    set_blocks(cut_model.config, numbers, model.n_blocks)
    return cut_model


def set_blocks(config: Any, blocks: Sequence[int], of: int) -> dict[str, Any]:
    """Make a config describe some of a model's `of` blocks; return the values it had before.

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
    """Return the path of the list that holds the blocks, or None."""
    for path, child in module.named_modules():
        if isinstance(child, nn.ModuleList) and len(child) >= len(blocks):
            pairs = zip(child, blocks, strict=False)
            if all(member is block for member, block in pairs):
                return path
    return None
