"""Model families: a declaration of where an architecture keeps its blocks, norms and branches,
which becomes an `Anatomy`; and the generic family, which looks for the parts of any other
architecture.

Another package adds families through an entry point of the group `layerscope.families`: it names a
`Family`, or a module with a sequence of them called `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from layerscope.capture.hooks import Anatomy, Residual, Tap
from layerscope.core.plugins import Registry
from layerscope.errors import ModelError
from layerscope.models import modules
from layerscope.models.loaded import LoadedModel
from layerscope.models.pretrained import read_text_model

if TYPE_CHECKING:
    from layerscope.models.source import Source

__all__ = ["FAMILIES", "Family", "GenericFamily", "declared_family", "family_for", "pre_norm_taps"]


@dataclass(frozen=True)
class Family:
    """A declaration of where one family of architectures keeps its parts.

    `taps` maps a sub-site to a path inside a block: `"self_attn"` reads that module's output, and
    `"post_attention_layernorm.input"` what goes into it; `"attention * lambda_1"` the output times
    a parameter of the block. Paths may name alternatives, `"layers|encoder.layer"`, where versions
    of transformers differ. `residual` may depend on the config. `bidirectional` says whether tokens
    see later tokens as the model is published.

    `containers` are the model types that hold such a model as a part, `attentions` the values of
    `attention=`, and `notes` is for the reader of results. A family of models that read no texts
    overrides `kind` and the methods after `resolve`.
    """

    kind: ClassVar[str] = "texts"

    name: str
    model_types: tuple[str, ...]
    blocks: str
    final_norm: str | Callable[[Any], str | None] | None
    taps: Mapping[str, str] = field(default_factory=dict)
    residual: Residual | Callable[[Any], Residual] = "unknown"
    bidirectional: bool = False
    containers: tuple[str, ...] = ()
    attentions: tuple[str, ...] = ()
    notes: str = ""

    @property
    def has_own_classes(self) -> bool:
        """Return whether the classes of the models come with the family, not with transformers."""
        return False

    def declares(self, config: Mapping[str, Any]) -> bool:
        """Return whether a config.json is that of a model of this family."""
        return config.get("model_type") in (*self.model_types, *self.containers)

    def fits(self, model_type: str | None, module: nn.Module | None = None) -> bool:
        """Return whether the family describes a model whose type none declares.

        `module` is the model, if it is loaded.
        """
        return False

    def resolve(self, module: nn.Module) -> Anatomy:
        """Find the declared parts in `module`."""
        block_list = self._find(module, self.blocks)
        if not isinstance(block_list, nn.ModuleList) or len(block_list) == 0:
            raise self._misfit(module, f"{self.blocks!r} is not a list of blocks")
        config = getattr(module, "config", None)
        # Some models run only the first `num_hidden_layers` of the blocks they hold.
        count = getattr(config, "num_hidden_layers", None) or len(block_list)
        blocks = list(block_list)[:count]
        residual = self.residual(config) if callable(self.residual) else self.residual
        sites = dict(self.taps)
        if residual in ("parallel", "single"):
            sites.pop("mid", None)  # no such state exists there
        path = self.final_norm(config) if callable(self.final_norm) else self.final_norm
        norm = self._find(module, path) if path else None
        taps = [{site: self._tap(block, path) for site, path in sites.items()} for block in blocks]
        return Anatomy(self.name, blocks, norm, taps, residual)

    def read(self, source: Source, options: dict[str, Any]) -> tuple[nn.Module, Any]:
        """Read a model of this family from files, and what prepares its input: a tokenizer."""
        return read_text_model(source, options)

    def choose_attention(self, module: nn.Module, attention: str) -> None:
        """Set which tokens see which, for families that name `attentions`."""

    def make_model(
        self, module: nn.Module, preparation: Any, anatomy: Anatomy, name: str
    ) -> LoadedModel:
        """Return the model with what prepares its input (None: as usual for such a model)."""
        return LoadedModel(module, preparation, anatomy, name)

    def is_bidirectional(self, module: nn.Module) -> bool:
        """Return whether the tokens of a model see later tokens."""
        config = getattr(module, "config", None)
        return self.bidirectional or getattr(config, "is_causal", None) is False

    def sees_ahead(self, module: nn.Module) -> bool:
        """Run the model on small inputs to find out whether its first token sees the last one."""
        return modules.sees_ahead(module)

    def _tap(self, block: nn.Module, path: str) -> Tap:
        path, _, factor = (piece.strip() for piece in path.partition("*"))
        if path.endswith(".input"):
            return Tap(self._find(block, path.removesuffix(".input")), "input")
        # no scale, or a plain number, where the block has no such parameter
        scale = getattr(block, factor, None) if factor else None
        return Tap(self._find(block, path), "output", scale)

    def _find(self, module: nn.Module, path: str) -> nn.Module:
        for choice in path.split("|"):
            try:
                return module.get_submodule(choice)
            except AttributeError:
                continue
        children = ", ".join(name for name, _ in module.named_children()) or "no children"
        raise self._misfit(module, f"it has no {path!r} (it has: {children})")

    def _misfit(self, module: nn.Module, reason: str) -> ModelError:
        return ModelError(
            f"{type(module).__name__} does not have the structure of family {self.name!r}: "
            f'{reason}. Leave `family` out, or pass family="generic" to have the blocks looked for.'
        )


def pre_norm_taps(norm1: str, attn: str, norm2: str, mlp: str) -> dict[str, str]:
    """Return the taps of a block that norms, attends, adds, norms, applies its MLP and adds."""
    return {"norm1": norm1, "attn": attn, "mid": f"{norm2}.input", "norm2": norm2, "mlp": mlp}


class GenericFamily(Family):
    """Finds the list of blocks and the final norm by structure, then by what they compute."""

    def resolve(self, module: nn.Module) -> Anatomy:
        blocks = self._find_blocks(module)
        norm = self._find_final_norm(module, blocks)
        taps: list[dict[str, Tap]] = [{} for _ in blocks]
        return Anatomy(family=self.name, blocks=list(blocks), final_norm=norm, taps=taps)

    def is_bidirectional(self, module: nn.Module) -> bool:
        return self.sees_ahead(module)

    def try_model(self, module: nn.Module) -> Any:
        """Run the model on a small input."""
        return modules.run(module, modules.sample(module))

    def _find_blocks(self, module: nn.Module) -> nn.ModuleList:
        """Return the one list of modules as long as the config's number of layers, or the only
        list."""
        lists = {
            name: submodule
            for name, submodule in module.named_modules()
            if isinstance(submodule, nn.ModuleList) and len(submodule)
        }
        expected = getattr(getattr(module, "config", None), "num_hidden_layers", None)
        fitting = [
            submodule
            for name, submodule in lists.items()
            if expected in (None, len(submodule))
            # a list inside a block is not a list of blocks
            and not any(name.startswith(f"{outer}.") for outer in lists)
        ]
        if len(fitting) == 1:
            return fitting[0]
        shown = [f"{name} ({len(part)} × {type(part[0]).__name__})" for name, part in lists.items()]
        length = "" if expected is None else f" of length num_hidden_layers = {expected}"
        raise self._unknown(
            module,
            f"{len(fitting)} lists of modules{length} could be the blocks. Lists of modules: "
            f"{', '.join(shown) or 'none'}",
        )

    def _find_final_norm(self, module: nn.Module, blocks: nn.ModuleList) -> nn.Module | None:
        """Return the norm between the last block and the model's output, or None where the last
        block's output is the output. A small pass shows which it is."""
        inside = {id(submodule) for block in blocks for submodule in block.modules()}
        norms = {
            name: submodule
            for name, submodule in module.named_modules()
            if "norm" in type(submodule).__name__.lower()
            and id(submodule) not in inside
            and not list(submodule.children())
        }
        order: list[int] = []
        inputs: dict[nn.Module, Any] = {}
        outputs: dict[nn.Module, Any] = {}
        numbers = {block: k for k, block in enumerate(blocks)}

        def watch(submodule: nn.Module, arguments: Any, output: Any) -> None:
            inputs[submodule] = arguments[0] if arguments else None
            outputs[submodule] = modules.first(output)
            if submodule in numbers:
                order.append(numbers[submodule])

        watched = (*blocks, *norms.values())
        handles = [submodule.register_forward_hook(watch) for submodule in watched]
        try:
            output = modules.first(self.try_model(module))
        except Exception as error:
            raise self._unknown(module, f"a small input could not be run: {error}") from error
        finally:
            for handle in handles:
                handle.remove()
        if order != list(range(len(blocks))):
            raise self._unknown(
                module, f"a pass ran its {len(blocks)} modules in the order {order[:12]}"
            )
        last = outputs[blocks[-1]]
        if not isinstance(last, Tensor) or last.dim() != 3 or not isinstance(output, Tensor):
            raise self._unknown(module, "its states are not of shape (batch, tokens, width)")
        if _same(last, output):
            return None
        for norm in norms.values():
            if _same(inputs.get(norm), last) and _same(outputs.get(norm), output):
                return norm
        raise self._unknown(
            module,
            "the output is neither the last block's output nor a norm of it. Norms outside the "
            f"blocks: {', '.join(norms) or 'none'}",
        )

    def _unknown(self, module: nn.Module, problem: str) -> ModelError:
        return ModelError(
            f"the blocks and the final norm of {type(module).__name__} could not be determined: "
            f"{problem}. Pass `family` if the model has the structure of a known one, or add a "
            "family (docs/extend.md)."
        )


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    return a.shape == b.shape and torch.equal(a.to(b.device), b)


GENERIC = GenericFamily(name="generic", model_types=(), blocks="", final_norm=None)

# Llama and the decoders with its block: norm, attention, add, norm, MLP, add.
LLAMA = Family(
    name="llama",
    model_types=(
        "llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "gemma", "phi3", "olmo",
        "starcoder2", "arcee", "cwm", "ernie4_5", "glm", "helium", "seed_oss", "hunyuan_v1_dense",
    ),
    blocks="layers",
    final_norm="norm",
    taps=pre_norm_taps("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
    residual="sequential",
)  # fmt: skip

# Gemma 2 and 3 (text): each branch is normed again before it is added, so the branch is read after
# that norm.
GEMMA3 = replace(
    LLAMA,
    name="gemma3",
    model_types=("gemma3_text", "gemma2"),
    taps=pre_norm_taps(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
)

GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    blocks="h",
    final_norm="ln_f",
    taps=pre_norm_taps("ln_1", "attn", "ln_2", "mlp"),
    residual="sequential",
)


# GPT-NeoX and Pythia: attention and MLP read the same input, unless the config says otherwise.
def _residual(config: Any) -> Residual:
    return "parallel" if getattr(config, "use_parallel_residual", True) else "sequential"


GPT_NEOX = replace(
    LLAMA,
    name="gpt_neox",
    model_types=("gpt_neox",),
    final_norm="final_layer_norm",
    taps=pre_norm_taps("input_layernorm", "attention", "post_attention_layernorm", "mlp"),
    residual=_residual,
)

# Mamba: one mixer per block, which counts as `attn`.
MAMBA = Family(
    name="mamba",
    model_types=("mamba", "falcon_mamba"),
    blocks="layers",
    final_norm="norm_f",
    taps={"norm1": "norm", "attn": "mixer"},
    residual="single",
)

MAMBA2 = replace(MAMBA, name="mamba2", model_types=("mamba2",))

# BERT: the norm comes after each sum, so `mid` and the block output are themselves normed and no
# norm is left over.
BERT = Family(
    name="bert",
    model_types=("bert",),
    blocks="encoder.layer",
    final_norm=None,
    # The dense outputs are the branches as added; the dropout between them and the sum is off.
    taps={"attn": "attention.output.dense", "mid": "attention.output", "mlp": "output.dense"},
    residual="post-norm",
    bidirectional=True,
)

# RoBERTa and the encoders with its block, which is BERT's.
ROBERTA = replace(BERT, name="roberta", model_types=("roberta", "xlm-roberta", "camembert"))

# MPNet: BERT's block with the attention's parts under other names.
MPNET = replace(
    BERT,
    name="mpnet",
    model_types=("mpnet",),
    taps={"attn": "attention.attn.o", "mid": "attention.LayerNorm", "mlp": "output.dense"},
)

# ModernBERT: a pre-norm encoder. Its embeddings are normed, so the first block's attention norm is
# an identity.
MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    blocks="layers",
    final_norm="final_norm",
    taps=pre_norm_taps("attn_norm", "attn", "mlp_norm", "mlp"),
    residual="sequential",
    bidirectional=True,
)

EUROBERT = replace(LLAMA, name="eurobert", model_types=("eurobert",), bidirectional=True)

_BUILT_IN = (
    GENERIC,
    LLAMA,
    GEMMA3,
    GPT2,
    GPT_NEOX,
    MAMBA,
    MAMBA2,
    BERT,
    ROBERTA,
    MPNET,
    MODERNBERT,
    EUROBERT,
)

FAMILIES: Registry[Family] = Registry(
    "model family",
    "layerscope.families",
    name=lambda family: family.name,
    check=lambda thing: isinstance(thing, Family),
    find=lambda module: list(getattr(module, "FAMILIES", ())),
    hint='family="generic" looks for the blocks itself.',
)
for _family in _BUILT_IN:
    FAMILIES.add(_family)


def declared_family(config: Mapping[str, Any]) -> Family:
    """Return the family that declares a config.json; if none does, one that fits such models."""
    declaring = (family for family in FAMILIES.all().values() if family.declares(config))
    return next(declaring, None) or _fitting(config.get("model_type"))


def family_for(module: nn.Module, name: str | None = None) -> Family:
    """Return the family called `name`, or the one that declares the module's model type.

    If none does, or with `name` generic, it is one that looks for the parts itself.
    """
    model_type = getattr(getattr(module, "config", None), "model_type", None)
    if name not in (None, GENERIC.name):
        return FAMILIES.get(name)
    families = FAMILIES.all().values() if name is None else ()
    declaring = (family for family in families if model_type in family.model_types)
    return next(declaring, None) or _fitting(model_type, module)


def _fitting(model_type: str | None, module: nn.Module | None = None) -> Family:
    families = FAMILIES.all().values()
    return next((family for family in families if family.fits(model_type, module)), GENERIC)
