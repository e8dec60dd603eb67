"""Numbers for people: `summary` turns timings into a row, `table` prints rows and writes JSON."""
