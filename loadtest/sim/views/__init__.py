"""Ways to guess what a worker has cached, other than ours: measuring devices for comparison, one file each.

`routed.RoutedPrefixes` remembers what was sent where and asks a `Memory` how long to believe it; `fixed_ttl`,
`blind_lru` and `nothing` are such memories. Each is the rule with its known accidents left out: it compares the same
token blocks as ours, matches contiguous prefixes only, and sees a prompt the moment it is placed.
"""
