"""The workers' side of HTTP/1.1: connections and their pool, heads, events and ends of answers."""
