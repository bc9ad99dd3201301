"""MTEB's tasks as numbers, scored on a device at all layers together."""
