"""The life of one forwarded request.

- `transitions` is the table of states, events and effects. `flow.Flow` follows it, without sockets and without a clock.
- `forwarding.ForwardedRequest` drives the flow: it turns calls from the client, the queues and its attempts into
  events, and carries out the effects. `deadlines` computes when a state ends.
- `identify` finds the prompt's identity, `model_choice` the model, and `charging` what the caller's limits are charged.
- `placements` asks the dispatcher; `attempt.Attempt` is one try at one worker.
- `opening.Opening` keeps an answer back until its first real event; `responder.Responder` and `respond.Relay` write it.
- `outbound`, `reading`, `outcomes`, `services` and `request_log` hold the values and parts that these modules share.

Imported by `router.gateway.client`, which starts each request. docs/reference/request-flow.md draws the table.
"""
