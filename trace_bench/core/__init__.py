"""The base layer, which every other package may import: values, interfaces, errors, files."""

VERSION = "0.2.0.dev0"
