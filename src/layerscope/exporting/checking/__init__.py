"""Whether an exported folder gives what was measured."""
