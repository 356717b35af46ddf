"""Policies: generate the agent's turns and keep their exact tokens."""
