"""Placement: choose a worker for each request and account for its load. Synchronous and pure.

Times and random sources are arguments: the gateway passes real time, the simulator virtual time, with the same code.
`core.DecisionCore` puts the parts together. `Dispatcher` takes requests and returns tickets, `Tickets` follows them,
and `HandoverPlanner` plans what workers share; `Fleet` holds the workers and their health, `WorkerLoads` their load.

A decision is: select the candidates that may take the request, build their views, ask the policy, and reserve load and
blocks on its choice, in one step. The next request therefore sees this one. Lifecycle events release the reservation.

Invariants:

- A ticket ends exactly once, and its reservation with it.
- Decisions rest on reservations. A scrape may be a second old, so it only shows load from elsewhere (`UnreservedLoad`).
- A policy that raises or returns an invalid answer fails no request.
- Silence alone ejects no worker: a time-out counts only if others answered meanwhile and the worker made no progress,
  and never takes more than half of a model's workers (as Envoy's panic threshold).
- Retries are paid from a budget in proportion to the traffic (Finagle's retry budget).

Speeds are learned per worker from times to first token, by least squares with forgetting, and shrunk toward the
fleet's median. Nothing about model or hardware is assumed. Imported by `router` and `loadtest`.
"""
