"""Checklists: what each of a user's turns asks for, as binary items with evidence (after CM2, arXiv
2602.12268).

    items       Item and Checklist, read from and written to CM2's JSON [variant][turn][item]
    talk        a conversation as turns of the user and steps of the agent; equality of calls
    sources     checklists by program, from a reference and what a suite rewards in it
    judges      verdicts by program, also with set error rates; an episode's checklist, worked off
    model_judge verdicts by a model
    rewards     rewards and advantages of trajectories, turns and steps
"""
