"""One run, from its settings to its summary."""
