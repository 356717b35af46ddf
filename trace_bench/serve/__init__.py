"""Serves a trained agent over HTTP as OpenAI's chat completions: prompt, router and adapters whole.

request.py      what a client may send, checked; which conversation it goes on with
engine.py       answers by this process's own engine, all clients in one batch
forward.py      answers by servers behind it: the router picks, the request goes on
completion.py   answers in OpenAI's shape
app.py          HTTP: keys, limits, errors, streams
"""
