"""Makes folders of recorded dialogues for env=recorded: `__main__` is the command, `folder` writes,
`dialogues` come from references and runs, `annotate` has checklists by a model."""
