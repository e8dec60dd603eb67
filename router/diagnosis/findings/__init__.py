"""The checks, one module for each pressure point, each with one function ``check(measured, thresholds)``."""
