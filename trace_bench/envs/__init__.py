"""Environments. `settings.registry` finds them; `check` tests that one satisfies the protocol."""
