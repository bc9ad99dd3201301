"""What layerscope does without a hub: models, texts, images and tasks by short names, and GGUF
files."""
