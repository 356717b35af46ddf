"""What users ask for: every function draws one request of its kind at random.

choices.py has the source of random choices, request.py the request itself; the other modules hold
the kinds of requests, one area of the phone each.
"""
