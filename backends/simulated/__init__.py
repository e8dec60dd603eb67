"""The embedded worker: `backends.engine` behind vLLM's HTTP, metrics and KV events.

`server` is the HTTP side, `publisher` the KV events, `settings` what a worker can be told; `model/` is the small
tokenizer it ships with, made by `build_model`. Imported by `router.cli` and `loadtest`.
"""
