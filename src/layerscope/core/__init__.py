"""Plain values and statistics that the whole package speaks in. Nothing here imports anything above
it."""
