"""What every front does with a request before a worker gets it: read it, identify its prompt, admit it and place it.

- `request_head`, `routes`: a head as a front received it, and what its path means.
- `incoming`: `IncomingRequest`, the request while it is in progress; `outgoing`: what its worker gets.
- `identify`, `admission`, `rewrites`: its body read, checked, given the operator's names, and its prompt identified.
- `body_buffer_limit`: the memory of all bodies.
- `layer`, `layers`: features around a request, for example the limits of its caller.
- `placing`, `queues`: `PlacementGate` asks for a worker, within the quarantine and the queues.
- `answers`: events, usage and errors in answers, as each API has them.
- `front`: a front as the rest of the process sees it.

`router.gateway` (HTTP) and `router.picker` (Envoy's external processing) are the fronts. Neither imports the other.
"""
