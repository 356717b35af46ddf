"""Serves a trained agent over HTTP as OpenAI's chat completions: prompt, router and adapters whole.

request.py      what a client may send, checked; which conversation it goes on with
app.py          HTTP: keys, limits, errors, streams
local.py        answers by this process: prepared, asked for, put into shape
engine.py       the thread that runs this process's engine for all clients
hold.py         what holds an answer to its request: form, stops, the share that is drawn from
forward.py      answers by servers behind it: the router picks, the request goes on
completion.py   answers in OpenAI's shape
"""
