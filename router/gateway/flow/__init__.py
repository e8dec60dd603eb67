"""The life of one forwarded request.

It is a state machine without input and output: `Flow` takes events and returns effects, and one table
(`transitions.TRANSITIONS`; docs/reference/request-flow.md) says which. `RequestDriver` drives it: it turns calls
from the client, the queues and the attempts into events, and has each effect carried out by its step (`steps`).
`OutboundRequest` holds all that belongs to the request; `Attempt` is one try at one worker; `Relay` writes the answer.
A step, an identification, an outcome or a deadline returns what follows (`services.Follows`); none calls the driver.

Invariants:

- No part of a worker's answer reaches the client before its first real event (`Opening`). Until then a failure may be
  retried elsewhere; after it, the client gets an error event or a visibly truncated body, never a second answer.
- After the first event tokens bypass the flow: the worker's bytes go to the client unchanged, framing included, unless
  the client cannot read that framing or has had a head of the gateway's.
- Every placed attempt is released, whatever ends the request; the log entry is written once.
- A request of two workers is a plan of legs, and only the last leg's answer is the client's.

`router.gateway.client` starts each request. Sans-IO in the way of h11 (``h11/_state.py``).
"""
