"""Virtual time over the gateway's own core and the engine model: hours of traffic in seconds, the same every time.

`virtual_time.VirtualTime` is the clock, `sessions.Session` the requests of one client, and `worker.EngineWorker` one
engine on that clock. `gateway.SimulatedGateway` is the real Dispatcher and Fleet; `clients.Clients` send their
sessions through it, and `calls` carries each call. `lab.run_cell` connects them. Nothing here reads a
clock or opens a socket.
"""
