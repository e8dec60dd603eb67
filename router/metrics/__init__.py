"""What the process counts and measures while it works.

`catalogue` declares every metric, `instruments` are counters and histograms, and a `registry.Registry` makes the ones
of the catalogue. Each package holds the instruments that it writes to, and `router.telemetry` reads all of them at a
scrape. Imported by every package of the router that counts.
"""
