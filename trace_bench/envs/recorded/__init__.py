"""Recorded dialogues as an environment: the user's turns verbatim, tools replayed or simulated, and
a checklist as the score."""
