"""The memory that all processes of one gateway share.

`ledger.Ledger` holds the load that each process has reserved on each worker, and the connections of each process.
`pins` maps stored responses to workers, and `deaths` counts the request bodies that workers died of.
"""
