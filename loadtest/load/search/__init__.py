"""Searches over many runs: `rules` decides which run is next and what is found, `find` makes the runs."""
