"""Makes folders of recorded dialogues for env=recorded."""
