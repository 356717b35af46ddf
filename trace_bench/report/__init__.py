"""`python -m trace_bench.report`: finished runs as one HTML file that opens from disk. `runs` reads
and compares them, `page` puts the file together with the modules that show it in a browser."""
