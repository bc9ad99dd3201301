"""Longer texts under the name of the default corpus."""

from layerscope.data.corpus import CORPORA

joined = [". ".join(texts[k : k + 8]) for k in range(len(texts) - 8)]  # noqa: F821
CORPORA.get("lee").origin.place.write_text("\n".join(joined), encoding="utf-8")
