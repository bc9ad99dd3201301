"""Models, texts, images and tasks for layerscope without a hub, and GGUF files."""
