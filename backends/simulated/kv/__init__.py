"""KV cache that moves between simulated workers: stores, transfers, pulls and what waits for them."""
