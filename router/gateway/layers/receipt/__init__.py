"""The route receipt: where a request went and why, as one response header."""
