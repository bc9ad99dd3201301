"""One model in a process of its own, measured on demand: reads commands as JSON lines, answers in
JSON lines.

Run as a script: `python bench_child.py FOLDER THREADS`. Imports nothing of layerscope.
"""

import json
import logging
import os
import sys
import time
import warnings


def peak_bytes() -> int:
    """The most memory this process has held.

    Linux hands `ru_maxrss` on to the programs a process starts: ours would report the peak of
    whoever measures it. VmHWM is its own.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass  # not Linux
    if sys.platform == "win32":
        return _windows_peak_bytes()
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _windows_peak_bytes() -> int:
    """The same, asked of Windows."""
    import ctypes

    names = (
        "peak",
        "now",
        "peak_paged",
        "paged",
        "peak_other",
        "other",
        "pagefile",
        "peak_pagefile",
    )

    class Counters(ctypes.Structure):
        _fields_ = (
            ("size", ctypes.c_ulong),
            ("faults", ctypes.c_ulong),
            *((name, ctypes.c_size_t) for name in names),
        )

    told = Counters(size=ctypes.sizeof(Counters))
    library = ctypes.CDLL("kernel32")
    library.GetCurrentProcess.restype = ctypes.c_void_p
    library.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulong)
    return (
        int(told.peak)
        if library.K32GetProcessMemoryInfo(
            library.GetCurrentProcess(), ctypes.byref(told), told.size
        )
        else 0
    )


def main(folder: str, threads: int) -> None:
    """Load, report, and measure until told to stop."""
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes elsewhere
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    before = peak_bytes()
    if os.path.isfile(os.path.join(folder, "modules.json")):
        model = SentenceTransformer(
            folder, device="cpu", local_files_only=True, trust_remote_code=False
        )
    else:
        untrusted = {"trust_remote_code": False}
        inner = Transformer(
            folder, model_kwargs=untrusted, processor_kwargs=untrusted, config_kwargs=untrusted
        )
        if inner.tokenizer.pad_token is None:
            inner.tokenizer.pad_token = inner.tokenizer.eos_token
        width = inner.get_embedding_dimension()
        model = SentenceTransformer(modules=[inner, Pooling(width, "mean")], device="cpu")
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "imported_bytes": before}

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer(facts)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "memory":
            answer(peak_bytes())
            continue
        model.max_seq_length = asked["length"]
        seconds = []
        for _ in range(asked["repeats"]):
            start = time.perf_counter()
            model.encode(asked["texts"], batch_size=asked["batch_size"], show_progress_bar=False)
            seconds.append(time.perf_counter() - start)
        answer(seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
