"""Policies: they own tokens, and turn conversations into next turns."""
