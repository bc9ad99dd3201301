"""Models of nnsight and TransformerLens given to layerscope: the vectors of all layers are those of
the model that they hold.

    check_lenses.py WORK nnsight | bridge | hooked

SmolLM2 is given to nnsight and to a TransformerBridge. HookedTransformers (before TransformerLens
4) have random weights and are compared with their own `hook_resid_post`.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import transformers
from common import TEXTS, WORK, distance, told

import layerscope

KIND = sys.argv[2]
FOLDER = WORK / "smollm2-transformers"


def pulled(vectors: np.ndarray) -> np.ndarray:
    """(layers, texts, D) as rows."""
    return vectors.reshape(-1, vectors.shape[-1])


def refused(model: object) -> None:
    try:
        layerscope.wrap(model)  # type: ignore[arg-type]
    except layerscope.LayerscopeError:
        return
    raise AssertionError("a model with processed weights was read")


plain = layerscope.load("smollm2-135m")
if not FOLDER.exists():
    whole = transformers.LlamaForCausalLM(plain.module.config)
    whole.model.load_state_dict(plain.module.state_dict())
    whole.tie_weights()
    whole.save_pretrained(FOLDER)
    plain.tokenizer.save_pretrained(FOLDER)

if KIND == "nnsight":
    from nnsight import LanguageModel

    refused(LanguageModel(str(FOLDER)))  # its weights are not loaded
    model = LanguageModel(str(FOLDER), dispatch=True)
    wanted = layerscope.encode(plain, TEXTS, layers="all", progress=False)
    given = layerscope.encode(model, TEXTS, layers="all", progress=False)
    told(
        "nnsight",
        "smollm2-135m in a LanguageModel, all layers",
        distance(pulled(given), pulled(wanted)),
    )
elif KIND == "bridge":
    from transformer_lens import TransformerBridge

    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    bridge = TransformerBridge.boot_transformers(str(FOLDER), tokenizer=tokenizer, device="cpu")
    given = layerscope.encode(bridge, TEXTS, layers="all", progress=False)
    same = layerscope.encode(
        layerscope.wrap(plain.module, bridge.tokenizer), TEXTS, layers="all", progress=False
    )
    ids = torch.tensor([bridge.tokenizer(TEXTS[0])["input_ids"]])
    cache = bridge.run_with_cache(ids)[1]
    raw = layerscope.encode(
        bridge, TEXTS[:1], layers="all", readout="plain/mean/raw", progress=False
    )[1:, 0]
    held = np.stack(
        [cache[f"blocks.{i}.hook_resid_post"][0].mean(0).detach().numpy() for i in range(len(raw))]
    )
    far = max(distance(pulled(given), pulled(same)), distance(raw, held))
    folder = layerscope.export(bridge, 5, out=WORK / "folders" / "from-bridge", overwrite=True)
    bridge.enable_compatibility_mode()
    refused(bridge)
    far = max(far, folder.cosine_distance)
    told(
        "transformer-lens",
        "smollm2-135m in a TransformerBridge, all layers; exported at layer 5",
        far,
    )
else:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    far = 0.0
    for norm, positions in (("LN", "standard"), ("RMS", "rotary")):
        sizes = {
            "n_layers": 4,
            "d_model": 64,
            "n_ctx": 512,
            "d_head": 16,
            "n_heads": 4,
            "d_vocab": len(plain.tokenizer),
        }
        config = HookedTransformerConfig(
            **sizes, act_fn="gelu", normalization_type=norm, seed=0, positional_embedding_type=positions,
            rotary_dim=16 if positions == "rotary" else None,
        )  # fmt: skip
        lens = HookedTransformer(config)
        lens.set_tokenizer(transformers.AutoTokenizer.from_pretrained(FOLDER))
        given = layerscope.encode(
            lens, TEXTS, layers="all", readout="plain/mean/raw", max_length=512, progress=False
        )
        for i, text in enumerate(TEXTS):
            cache = lens.run_with_cache(torch.tensor([lens.tokenizer(text)["input_ids"]]))[1]
            held = np.stack(
                [cache[f"blocks.{k}.hook_resid_post"][0].mean(0).detach().numpy() for k in range(4)]
            )
            far = max(far, distance(given[1:, i], held))
        lens.process_weights_(fold_ln=norm == "RMS", center_writing_weights=norm == "LN")
        refused(lens)
    told(
        "transformer-lens",
        "random HookedTransformers (LayerNorm, RMSNorm), hook_resid_post of all layers",
        far,
    )
