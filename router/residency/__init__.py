"""Which worker holds which prefix. Pure: no sockets, no clock.

A prompt is a chain of block hashes, each over the block's tokens and the hash before it, so equal hashes mean equal
prefixes. The longest cached prefix on a worker is the number of leading hashes that it holds. The request side
(`router.tokenization`) and the event side hash with the one function `extend_chain`; the engine's own hashes change
between versions (vLLM 0.29, 0.31) and only name blocks within one worker.

- `ExactCache` follows a worker's KV events. vLLM does not deduplicate: a block counts until its last copy is removed.
- `ApproximateCache` models a cache without events as vLLM evicts: the least recently finished request first, from its
  tail to its head, never a block before those that follow it.
- `ResidencyMap` answers for all workers at once: one walk over an index of hash -> bitmask of caches.

Invariants:

- A cache is exact only while no event is missing and the self-test of the hashes agrees. Batches are counted from 0; a
  jump is the only sign of a loss. The cache is unknown until the replay closes the gap, and approximate if it cannot.
- A block whose parent is unknown is kept aside, never guessed. Events about slower tiers never change what the GPU
  is known to hold.
- Blocks of a placed request count as cached at once, because vLLM makes a block reusable when it schedules it.
- What a response reports as cached is compared with the prediction, and each difference gets a reason.

Sources: vLLM's ``v1/core/block_pool.py`` and ``distributed/kv_events.py``.
"""
