"""Serves a trained agent over HTTP as OpenAI's chat completions: prompt, router, adapters whole."""
