"""Environments. `registry.suite` finds them, `check` tests that one keeps the contract."""
