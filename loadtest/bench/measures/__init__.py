"""The measures of a proxy. `catalogue` names them, and `sample` has their arguments and results.

Each measure returns samples by figure. Imported by `loadtest.bench`.
"""
