"""Changes to a request's body that the gateway makes, and their undoing in the response.

- `body_rewriter` decides which requests are rewritten.
- `json_splice` inserts JSON members without encoding the body again.
- `usage_frame` removes a usage frame that the client did not ask for.
"""
