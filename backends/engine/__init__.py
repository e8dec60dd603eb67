"""A pure model of one vLLM worker: its cache, its scheduling, and the time of each step.

The owner of the clock drives `Engine` step by step: `backends.simulated` in real time, the simulator in virtual time.
`BlockCache` is its paged KV cache, `Scheduler` its continuous batching, `StepTiming` its step time over a `Profile`
(`profiles/*.toml`). It has no sockets, no event loop, no clock and no randomness of its own.
"""
