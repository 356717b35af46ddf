"""Makes folders of recorded dialogues for env=recorded: `__main__` is the command, `dialogues`
reads and writes them, `annotate` has checklists by a model."""
