"""Benches of single parts, each run by hand as ``python -m loadtest.bench.parts.NAME``.

`decision`: CPU time of one placement. `identity`: tokens and block hashes of a prompt. `residency`: the index. `sim`:
speed of the simulator. `ingest_placement`: where to ingest KV events. `processes`: one process compared with two.
`discovery`: how fast a large fleet is found.
"""
