"""Other ways to guess what a worker has cached, for comparison with Warmroute's own: one file each.

`routed.RoutedPrefixes` remembers which prompt was sent where, and asks a `Memory` how long to believe it. `fixed_ttl`,
`blind_lru` and `nothing` are such memories. Each models only the rule, without the known defects of its
implementation: it compares the same token blocks as Warmroute, matches contiguous prefixes only, and sees a prompt at
the moment of its placement.
"""
