"""Virtual time over the gateway's own core and the engine model: hours of traffic in seconds, the same every time.

`virtual_time.VirtualTime` is the clock, `sessions.Session` what a client will ask, `worker.EngineWorker` one engine on
that clock, `gateway.SimulatedGateway` the real Dispatcher and Fleet with their edges, `run.simulate` puts them together
and answers with `outcome.Outcome`s. `late_ledger` is what routers on several hosts see of each other; `views` holds
other routers' ways to guess what is cached, to measure ours against.
Nothing here reads a clock or opens a socket.
"""
