"""The embedded worker: `backends.engine` behind vLLM's HTTP, metrics and KV events.

`server` is the HTTP side, `publisher` sends the KV events, and `settings` lists the options of a worker. `model/` is
the small tokenizer in the package, made by `docs.build.simulated_model`. Imported by `router.cli` and `loadtest`.
"""
