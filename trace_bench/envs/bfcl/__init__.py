"""The multi-turn part of BFCL-V4: entries, tool classes and checks of the package bfcl-eval, run
by our own state machine (reset, step, score) instead of its generation loop."""
