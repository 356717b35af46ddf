"""Which adapter plays an episode."""
