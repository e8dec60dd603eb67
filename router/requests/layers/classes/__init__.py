"""Classes of requests: who goes first, who waits and who is refused while the workers are busy."""
