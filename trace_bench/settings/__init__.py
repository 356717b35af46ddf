"""Settings: composed from the command line, checked, and resolved to the parts that they name."""
