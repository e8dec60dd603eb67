"""HTTP/1.1 on both sides of the gateway, without routing decisions.

- Requests from clients: `request_framer` finds where a request ends, `request_head` checks its head, `chunked_body`
  unpacks its body.
- A client's connection: `client_input` starts and stops reading, `client_output` writes.
- Responses from workers: `upstream_pool` keeps idle connections, `upstream_connection` frames responses,
  `response_head` checks their heads, `single_chunks` recognises tokens by their framing.
- Heads written by the gateway: `headers` (forwarded and own heads), `cors`, `request_ids`, `worker_keys`.
- Routes: `routes` lists the paths that are forwarded, as data.
- Memory: `send_buffer_limit` bounds buffers over all connections, `large_blocks` returns freed memory to the system.
- Time: `time_slices` divides long work on the event loop, `write_coalescer` groups short writes.
- `tunnel` carries WebSocket bytes, `access_log` writes one line per request.
"""
