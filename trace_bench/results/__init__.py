"""Results from run folders: figures with their uncertainty, tables and plots."""
