"""The client's side of HTTP/1.1: heads, bodies and routes of requests, and their bounds."""
