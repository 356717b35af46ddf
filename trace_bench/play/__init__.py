"""Runs episodes of several suites concurrently, in this process or in several."""
