"""Trackers: receive a run's metrics."""
