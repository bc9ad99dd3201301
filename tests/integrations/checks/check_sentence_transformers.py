"""SentenceTransformer(folder).encode."""

from __future__ import annotations

from common import FOLDER, TEXTS, distance, told, wanted
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(str(FOLDER), device="cpu", local_files_only=True)
told(
    "sentence-transformers", f"encode, {len(TEXTS)} texts", distance(model.encode(TEXTS), wanted())
)
