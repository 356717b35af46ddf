"""TRACE, step 1: which capabilities the agent lacks."""
