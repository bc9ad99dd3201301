"""HuggingFaceEmbedding on the folder, and LlamaIndex's vector index."""

from __future__ import annotations

import numpy as np
from common import FOLDER, TEXTS, distance, told, wanted
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

embedding = HuggingFaceEmbedding(model_name=str(FOLDER), device="cpu")
vectors = np.array(embedding.get_text_embedding_batch(TEXTS))
index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=embedding)
retriever = index.as_retriever(similarity_top_k=1)
for text in TEXTS[:3]:
    assert retriever.retrieve(text)[0].node.get_content() == text
told(
    "llama-index-embeddings-huggingface",
    "HuggingFaceEmbedding, VectorStoreIndex finds each text",
    distance(vectors, wanted()),
)
