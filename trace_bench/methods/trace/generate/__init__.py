"""Environments that a language model writes (method, step 4).

generation.py  the rounds: ask, check, calibrate, keep or give back
questions.py   what the generator is asked
checks.py      what a module must pass before a rollout is spent on it; held-out texts
"""
