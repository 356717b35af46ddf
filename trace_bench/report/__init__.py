"""`python -m trace_bench.report`: finished runs as one HTML file that opens from disk.

`runs` reads run folders, `talks` packs their conversations, `pairs` compares runs, `page` puts the
file together from the modules in `page/`, which show it in a browser.
"""
