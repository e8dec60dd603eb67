"""Who holds which prefix. Pure: no sockets, no clock.

Nouns: `prompt.Prompt` (the identity of a request's prefix), `residency.ResidencyMap` (the facade the core asks),
the exact index fed by KV events, and the approximate view where there are none. Imported by `router.placement`,
`router.tokenization` and `router.workers`.
"""
