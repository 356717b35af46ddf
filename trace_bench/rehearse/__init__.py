"""Rehearsals (the command), and the servers that stand in for others in them and in tests: one
whose answers a script writes, with the script of models in roles (`scripted`), and this project's
engine behind vLLM's HTTP (`engine`)."""
