"""The task sources of the core, one file each."""
