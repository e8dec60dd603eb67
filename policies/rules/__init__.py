"""The field's rules, one per file, each citing its source. Built by `policies.registry`."""
