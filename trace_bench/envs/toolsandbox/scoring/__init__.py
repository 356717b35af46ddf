"""Milestones and minefields: what an episode of the phone world is worth."""
