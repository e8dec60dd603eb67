"""The terms of the default rule's cost, one file each.

A term prices every candidate of a request in seconds (`term.Term`), and explains itself in one line.
`policies.marginal_cost.rule` imports them.
"""
