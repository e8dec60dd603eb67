"""Asks workers to announce the blocks that a request reuses again."""
