"""TRACE, step 2: training environments for them."""
