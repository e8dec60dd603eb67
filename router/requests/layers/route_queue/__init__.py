"""The requests of a route that has a limit, or a queue of its own."""
