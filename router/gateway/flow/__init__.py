"""The life of one forwarded request: states, attempts at workers, and the answer."""
