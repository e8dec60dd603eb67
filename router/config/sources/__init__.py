"""Readers of settings: `yaml_file`, `environment` and `flags`.

Each turns one kind of source into a `tree.Located` tree that remembers places. Imported by `router.config.load` only.
"""
