"""Training environments of other tools and domains than a benchmark's own, made by program.

tasks     what each domain keeps, and in which words; a task from a domain and a seed
env       one episode

They are schematic on purpose: every domain is one table with tools to find, add, change and remove
its rows. What differs is what a broad pool is about: tools, arguments, values and words.
"""
