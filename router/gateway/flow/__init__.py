"""The life of one forwarded request.

- `transitions` is the table: states, events, effects. `flow.Flow` follows it and knows neither sockets nor the clock.
- `forwarding.ForwardedRequest` drives it: it turns what happens into events and carries out the effects.
- `identify` finds the prompt's identity; `placements` asks the dispatcher; `attempt.Attempt` is one try at one worker.
- `opening.Opening` keeps an answer back until its first real event; `responder.Responder` and `respond.Relay` write it.
- `outbound`, `outcomes`, `deadlines`, `services` and `request_log` hold what these share.

Imported by `router.gateway.client`, which starts each request. docs/reference/request-flow.md draws the table.
"""
