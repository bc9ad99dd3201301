"""Every command but those that need an extra works without it: all modules import on a machine that
has the core alone."""

from __future__ import annotations

from tests.forking import run_python

EXTRAS = (
    "gguf", "altair", "vl_convert", "nlpaug", "datasets", "peft", "accelerate", "mteb", "sentence_transformers", "ray", "PIL",
    "layerscope_gpu", "onnx", "onnxruntime", "onnxscript",
    "python_calamine",
)  # fmt: skip
NEEDS_MTEB = "layerscope.evaluation.mteb_models"

PROGRAM = """
import importlib, importlib.machinery, pkgutil, sys

class Core(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {extras!r} else super().find_spec(name, path, target)

sys.meta_path = [Core if found is importlib.machinery.PathFinder else found for found in sys.meta_path]
import layerscope
for found in pkgutil.walk_packages(layerscope.__path__, "layerscope.", onerror=lambda name: None):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except Exception as error:
            print(found.name, type(error).__name__, error)
print(sorted(set(sys.modules) & set({extras!r})))
"""


def test_all_but_scoring_imports_with_the_core_alone() -> None:
    done = run_python(
        PROGRAM.format(extras=EXTRAS), without=["layerscope", "transformers", *EXTRAS]
    )
    *failed, blocked = done.stdout.splitlines()
    assert blocked == "[]"  # none of them was there
    assert {line.split()[0] for line in failed} == {NEEDS_MTEB}
    for line in failed:
        assert line.split()[1] == "MissingExtraError"
        assert "pip install " in line
        assert "[mteb]'" in line
