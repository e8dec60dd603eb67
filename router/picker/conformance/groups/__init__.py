"""The cases, one module per group. Each check takes a `Bench`, and raises if the picker does not pass."""
