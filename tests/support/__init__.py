"""Typed helpers for tests, imported by name: `from tests.support.scripted_worker import ScriptedWorker`.

`scripted_worker`: a worker behind a real socket. `answers`: the bytes that it writes. `raw_client`: requests as bytes,
and a client that reads responses by their framing. `gateway_rig`: a gateway with scripted workers behind it.
`kv_wire`: KV events as vLLM publishes them. `waiting`: conditions instead of sleeps.
"""
