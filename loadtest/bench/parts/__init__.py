"""Benches of single parts, each run by hand as ``python -m loadtest.bench.parts.NAME``.

`decision`: CPU time of one placement. `identity`: a prompt's tokens and block hashes. `residency`: the index. `sim`:
the simulator's speed. `ingest_placement`: where to ingest KV events. `processes`: one and two processes compared.
"""
