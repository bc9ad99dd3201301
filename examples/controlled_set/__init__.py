"""The parts of `train_controlled_set.py`: text, architectures, the selective scan, training,
packing."""
