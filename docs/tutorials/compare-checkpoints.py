# %% [markdown]
# # Compare checkpoints
#
# When in training do the layers take their shape? In this tutorial we train a tiny model for half a
# minute, keep four checkpoints, and profile each.

# %% tags=["colab"]
# On Colab, install layerscope first. Elsewhere this does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess

    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "layerscope[gguf,report,export,mteb]",
        ],
        check=True,
    )

# %% [markdown]
# ## A tiny model
#
# Four blocks of width 64 on 300 news texts, with a tokenizer trained on them. It only shows the
# method: draw no conclusions about language models from it.

# %%
import pandas as pd
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

import layerscope
from layerscope.data import load_corpus

texts = list(load_corpus("lee"))
core = Tokenizer(models.BPE(unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.ByteLevel()
core.train_from_iterator(
    texts,
    trainers.BpeTrainer(vocab_size=2000, special_tokens=["<unk>", "<pad>"], show_progress=False),
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>")

torch.manual_seed(0)
size = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
model = GPTNeoXForCausalLM(
    GPTNeoXConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **size)
)
ids = torch.tensor(sum(tokenizer(texts)["input_ids"], []))
print(f"{len(ids):,} tokens, {sum(p.numel() for p in model.parameters()):,} parameters")

# %% [markdown]
# ## Train, and save checkpoints as folders
#
# Any folder that `save_pretrained` writes works, such as those of the Hugging Face Trainer.

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(121):
    if step in (0, 20, 60, 120):
        model.save_pretrained(f"training/checkpoint-{step}")
        tokenizer.save_pretrained(f"training/checkpoint-{step}")
    starts = torch.randint(0, len(ids) - 64, (16,))
    batch = torch.stack([ids[k : k + 64] for k in starts])
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 40 == 0:
        print(f"step {step}: loss {loss.item():.2f}")

# %% [markdown]
# ## Compare profiles
#
# `plot` draws other runs on the same axes. *Prompt entropy* says how evenly the tokens of a text
# spread over directions; *curvature*, how sharply the path of states turns from token to token.

# %%
names = ["prompt_entropy", "curvature"]
steps = [0, 20, 60, 120]
folders = [f"training/checkpoint-{step}" for step in steps]
runs = [
    layerscope.profile(folder, "lee", limit=20, max_length=64, metrics=names) for folder in folders
]
runs[0].plot(*runs[1:], metrics=names)

# %%
curves = [run.wide()["prompt_entropy"] for run in runs]
pd.DataFrame(dict(zip(steps, curves, strict=True))).round(2)

# %% [markdown]
# ## What to remember
#
# - A checkpoint is a folder or a hub revision (`org/name@step1000`).
# - [LayerWatch](../training.md) measures the layers while a training runs, at 2 % of its time.
