"""Rehearsals (the command), and the servers that stand in for others in them and in tests: one
whose answers a script writes (`scripted`), models in roles by a script (`roles`), this project's
engine behind vLLM's HTTP (`engine`)."""
