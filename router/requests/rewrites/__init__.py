"""Splices in JSON bodies, and the name of another model in a body, a form or a query."""
