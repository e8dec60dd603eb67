"""What two studies share: `workloads` in short windows at fixed rates, and the default rule `without` one of its parts.

Only `loadtest.studies` imports this package.
"""
