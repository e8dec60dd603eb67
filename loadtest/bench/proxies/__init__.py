"""Each proxy that is measured, one file per kind; `entrants` lists those that take part.

An `Entrant` knows its version and how to start in front of a stand-in worker; a `Proxy` runs. Imported by
`loadtest.bench`.
"""
