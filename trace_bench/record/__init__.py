"""Makes folders of recorded dialogues for env=recorded: `__main__` is the command, `folder` writes,
`references` and `runs` are where dialogues come from, `annotation` has checklists by a model."""
