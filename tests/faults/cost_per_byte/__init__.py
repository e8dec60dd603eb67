"""A package, so that the gateways and the witness of its fixtures end with its last test."""
