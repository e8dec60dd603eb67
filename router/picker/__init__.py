"""What speaks Envoy's ext_proc protocol. `protocol` has its messages and names.

The extra `picker` installs grpcio and protobuf. Imported by `router.cli` only, and only when a command needs it.
"""
