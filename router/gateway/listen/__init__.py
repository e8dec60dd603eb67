"""The listening side of a port: `sockets` binds, `accept` accepts, `connection_limit` bounds, `drain` closes."""
