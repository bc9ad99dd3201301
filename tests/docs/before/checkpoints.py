"""Two trainings with the folders of their checkpoints."""

from tests.tiny import build_tiny, tiny_tokenizer

for seed, folder in enumerate(
    [
        *(f"build/controlled/trained/ar/step{n}" for n in (0, 125, 500)),
        *(f"out/checkpoint-{n}" for n in (500, 1000, 2000)),
    ]
):
    build_tiny("llama", seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
