"""Benches of single parts, each run by hand as ``python -m loadtest.bench.parts.NAME``.

`decision`: CPU time of one placement. `identity`: tokens and block hashes of a prompt. `residency`: the index.
"""
