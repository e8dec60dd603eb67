"""How busy each candidate is: the ledger of reservations, the table of facts, and the views that policies get.

`Ledger` books what a decision promises, `FleetTable` keeps one row per candidate, and `ViewBuilder` hands both to a
policy. Imports `fleet` and `learning`.
"""
