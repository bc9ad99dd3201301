"""MTEB's tasks for layerscope: described as plain numbers, and scored on a device at all layers together."""
