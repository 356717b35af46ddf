"""`python -m trace_bench.report`: finished runs as one HTML file that opens from disk.

`runs` reads run folders and compares them, `page` packs their conversations and puts the file
together with the modules in `page/`, which show it in a browser.
"""
