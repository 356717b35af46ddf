"""What users ask for: every function draws one request of its kind at random."""
