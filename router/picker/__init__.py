"""The endpoint picker: a front that tells Envoy, over ext_proc v3, which worker gets a request. It forwards nothing.

- `protocol`: messages and names on the wire.
- `server.PickerServer`: the gRPC server, its health service (`health`) and TLS (`credentials`).
- `stream.PickStream`: one stream of a gateway; `collected_request` says what is due after each of its messages.
- `pick.Pick`: one request, from identification over the queues to the end of its load; `parts` are what it uses.
- `request_headers`, `changes`, `answers`: what a gateway says, what changes, and the messages that say so.
- `learning`, `predicted_ends`: the end of an answer, seen or predicted. `pairs`: prefill and decode on two workers.
- `flags`, `settings`: flags of GAIE's and llm-d's pickers, and the settings of a picker.
- `conformance`: the suite that tests any endpoint picker, over gRPC alone.

The extra `picker` installs grpcio, protobuf and cryptography. Only `router.cli.picker` imports this package, and only
when the command runs.
"""
