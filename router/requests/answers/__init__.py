"""What fronts read of answers and write as errors: events and usage of streams, and error bodies of each API."""
