"""Asks workers for the usage of streams, and takes the answer out of the stream."""
