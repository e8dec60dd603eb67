"""The measures of a proxy, one per file. `catalogue` names them, and `subject` has their arguments and results.

Each measure returns samples by figure. Imported by `loadtest.bench`.
"""
