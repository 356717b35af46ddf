"""Methods, a file or a folder each: they turn the base agent into another within a budget.

A method is a class with `fit` and, to say beforehand what it will do, `plan`
(`core.protocols.Method`), and a frozen dataclass of settings, the one parameter of its constructor.
"""
