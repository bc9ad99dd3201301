"""The parts of `train_vision_set.py`: images in one file, three objectives on one trunk size, the
training loop, the reading."""
