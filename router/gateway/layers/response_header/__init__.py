"""A response header of a route: the smallest layer, and the example in CONTRIBUTING.md."""
