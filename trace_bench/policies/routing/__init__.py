"""Which adapter acts: one file a route, with its settings, how it is fitted to the adapters that
were trained, and how it chooses. `fit` gets what it learns from as an argument (`route.Evidence`),
so that nothing here imports the methods. What trains the gate is in `methods/trace/gate.py`."""
