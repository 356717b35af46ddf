"""Routers: choose the adapter for an episode."""
