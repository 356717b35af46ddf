"""What every part may import: values, interfaces, errors, files."""
