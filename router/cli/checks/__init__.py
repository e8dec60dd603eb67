"""`warmroute check`: asks workers, Redis and the settings, and reports findings."""
