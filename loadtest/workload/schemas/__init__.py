"""Schemas of traces, one module each: the fields of a row, and the sessions that rows make. All are `schema.Schema`s.

`known.recognise` finds a schema by the fields of a row. A new schema is added to the list there.
"""
