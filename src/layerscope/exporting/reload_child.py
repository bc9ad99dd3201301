"""A script that loads exported folders as anyone would, in a process without layerscope.

`python reload_child.py JOBS.json`. Each job names a folder, texts, and the file of their vectors.
"""

import json
import logging
import sys
import warnings


def main(path: str) -> None:
    """Encode every job's texts with sentence-transformers."""
    warnings.filterwarnings("ignore")
    with open(path, encoding="utf-8") as stream:
        work = json.load(stream)
    import numpy as np
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(work["threads"])
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    for job in work["jobs"]:
        model = SentenceTransformer(
            job["folder"], device="cpu", local_files_only=True, trust_remote_code=False
        )
        side = job.get("side")
        encode = getattr(model, f"encode_{side}") if side else model.encode
        vectors = encode(job["texts"], batch_size=2, convert_to_numpy=True, show_progress_bar=False)
        np.save(job["out"], np.asarray(vectors, dtype=np.float32))
    facts = {
        "layerscope_loaded": any(name.split(".")[0] == "layerscope" for name in sys.modules),
        "sentence_transformers": sys.modules["sentence_transformers"].__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    with open(work["facts"], "w", encoding="utf-8") as stream:
        json.dump(facts, stream)


if __name__ == "__main__":
    main(sys.argv[1])
