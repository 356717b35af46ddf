"""Which adapter acts: one file a route, with its settings, how it is fitted to the adapters that
were trained, and how it chooses. `fit` gets what it learns from as an argument (`route.Evidence`),
so that nothing here imports the methods.

    route.py        what all have; the experts, and the evidence that a route is learned from
    zero_shot.py    the base model is asked for a letter
    classifier.py   one adapter, or all by weights, by the base model's hidden state
    router.py       always one sum, or one adapter; the router of an agent, from plain JSON
    merge.py        sums of adapters as adapters
"""
