"""Looking: what an agent does in its training tasks, and which capabilities it lacks (steps 1 and
2 of TRACE; other methods stop here or look again).

    analysis.py      run the tasks, have the episodes labelled, choose: `Analysis`
    capabilities.py  the vocabulary, and the selection from labels
    rules.py         the labelling program; evidence.py: what it sees, and what a model reads
    analyst.py       a language model in its place
"""
