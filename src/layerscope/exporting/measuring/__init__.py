"""What an exported folder saves: speed, memory and size beside the whole model."""
