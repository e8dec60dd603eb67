"""What decides. Synchronous and pure: `now_s` and random sources are arguments; the gateway drives it with real
time, the simulator with virtual time.

Nouns: `dispatcher.Dispatcher` (requests in, decisions out), `fleet.Fleet` (workers and their states),
`ledger.Ledger` (what is booked where), `edges` (the values that cross). Imported by `router` and `loadtest`.
"""
