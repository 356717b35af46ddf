"""Environments in a box: the same `Env` as in this process, played by a worker in a container."""
