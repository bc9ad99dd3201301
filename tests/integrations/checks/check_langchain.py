"""HuggingFaceEmbeddings on the folder, and LangChain's vector store in memory."""

from __future__ import annotations

import numpy as np
from common import FOLDER, TEXTS, distance, told, wanted
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings

embeddings = HuggingFaceEmbeddings(
    model_name=str(FOLDER), model_kwargs={"device": "cpu", "local_files_only": True}
)
vectors = np.array(embeddings.embed_documents(TEXTS))
store = InMemoryVectorStore(embeddings)
store.add_texts(TEXTS)
for text in TEXTS[:3]:
    assert store.similarity_search(text, k=1)[0].page_content == text
told(
    "langchain-huggingface",
    "HuggingFaceEmbeddings, InMemoryVectorStore finds each text",
    distance(vectors, wanted()),
)
