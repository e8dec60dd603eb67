"""What a good choice is: pure rules from (request, fleet) to a ranking of candidates.

Nouns: `view.RequestView`, `view.WorkerView`, `view.FleetView`, `view.Decision`. `registry` builds a policy by
name. Imported by `router` and `loadtest`; imports nothing of ours.
"""
