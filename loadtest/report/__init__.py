"""Numbers to people: `summary` folds timings into a row, `table` prints rows and writes JSON."""
