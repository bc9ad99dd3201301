"""Sentence embeddings as the mean over several prompts: a module for sentence-transformers that needs nothing else.

Every text is put into each of the patterns of `blend.json`; the state of the last token is read, the mean in `blend.safetensors`
is subtracted, and the unit vectors of all patterns are averaged. Loaded by `SentenceTransformer(folder, trust_remote_code=True)`.
"""

import json
import os
import shutil
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

SLOT = "{text}"


class Blend(torch.nn.Module):
    """The first module of the folder: texts in, `sentence_embedding` out."""

    means: torch.Tensor  # (patterns, D)

    def __init__(self, model: Any, tokenizer: Any, settings: dict[str, Any], means: torch.Tensor) -> None:
        super().__init__()
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.max_seq_length = int(settings["max_length"])
        self.register_buffer("means", means)

    @property
    def modalities(self) -> list[str]:
        """What it reads."""
        return ["text"]

    def get_sentence_embedding_dimension(self) -> int:
        """The width of the vectors."""
        return int(self.means.shape[1])

    get_embedding_dimension = get_sentence_embedding_dimension

    def preprocess(self, texts: list[str], prompt: str | None = None, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Token ids (texts, patterns, tokens), padded on the right."""
        given = [(prompt or "") + str(text) for text in texts]
        rows = [self._ids(text, pattern) for text in given for pattern in self.settings["patterns"]]
        longest = max(len(row) for row in rows)
        pad = int(self.settings["pad_id"])
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        shape = (len(given), -1, longest)
        return {"input_ids": ids.reshape(shape), "attention_mask": mask.reshape(shape)}

    def tokenize(self, texts: list[str], **kwargs: Any) -> dict[str, torch.Tensor]:
        """The same, as older versions call it."""
        return self.preprocess(texts, **kwargs)

    def _ids(self, text: str, pattern: str) -> list[int]:
        """The filled pattern, at most as long as is allowed; it is the text that is cut, never the pattern."""
        if pattern == SLOT:
            rows = self._tokens(text, truncation=True, max_length=self.max_seq_length)["input_ids"]
            return list(rows) or [int(self.settings["pad_id"])]
        frame = len(self._tokens(pattern.replace(SLOT, ""))["input_ids"])
        room = self.max_seq_length - frame - 1  # a token more where the text's edges join the pattern's words
        places = [end for start, end in self._tokens(text, return_offsets_mapping=True)["offset_mapping"] if end > start]
        while True:
            short = text if len(places) <= room else text[: places[room - 1]] if room > 0 else ""
            row = list(self._tokens(pattern.replace(SLOT, short))["input_ids"])
            if len(row) <= self.max_seq_length or room <= 0:
                return row[: self.max_seq_length]
            room = max(0, room - (len(row) - self.max_seq_length))

    def _tokens(self, text: str, **options: Any) -> Any:
        return self.tokenizer(text, return_attention_mask=False, return_token_type_ids=False, verbose=False, **options)

    def forward(self, features: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, torch.Tensor]:
        """The mean over the patterns of the centered unit vectors."""
        texts, patterns, longest = features["input_ids"].shape
        ids, mask = (features[name].reshape(-1, longest) for name in ("input_ids", "attention_mask"))
        index = self.settings["index"]
        output = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=index is not None)
        states = output.last_hidden_state if index is None else output.hidden_states[index]
        last = mask.sum(-1) - 1
        vectors = states[torch.arange(len(states), device=states.device), last].reshape(texts, patterns, -1)
        centered = vectors.float() - self.means.to(vectors.device)
        units = torch.nn.functional.normalize(centered, dim=-1)
        return {**features, "sentence_embedding": units.mean(1)}

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", revision: Any = None, **kwargs: Any) -> "Blend":
        """Read the folder, or what a repository of that name holds."""
        folder = model_name_or_path
        if not os.path.isdir(folder):
            from huggingface_hub import snapshot_download

            folder = snapshot_download(folder, revision=revision, local_files_only=bool(kwargs.get("local_files_only")))
        folder = os.path.join(folder, subfolder) if subfolder else folder
        with open(os.path.join(folder, "blend.json"), encoding="utf-8") as stream:
            settings = json.load(stream)
        own = {"local_files_only": True, "trust_remote_code": False}  # this file is all the code that a blend needs
        model = AutoModel.from_pretrained(folder, **{**(kwargs.get("model_kwargs") or {}), **own, "use_safetensors": True}).eval()
        means = load_file(os.path.join(folder, "blend.safetensors"))["means"]
        return cls(model, AutoTokenizer.from_pretrained(folder, **own), settings, means)

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the folder again, with this file in it."""
        self.model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)
        with open(os.path.join(output_path, "blend.json"), "w", encoding="utf-8") as stream:
            json.dump(self.settings, stream, indent=2)
        save_file({"means": self.means.contiguous()}, os.path.join(output_path, "blend.safetensors"))
        shutil.copy(__file__, os.path.join(output_path, "blend.py"))
