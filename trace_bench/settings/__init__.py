"""From the command line to checked settings, and from names to the parts that they stand for."""
