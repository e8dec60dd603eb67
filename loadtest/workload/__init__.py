"""Workloads: requests, their times and their shared text, drawn from seeds. All of `loadtest` uses them.

For virtual time, a source (`source`) is a trace file (`trace`, `schemas`) or a generator (`generators`). A seed draws a
`plan.Plan` from it: sessions of calls whose prompts are `text.Text`s, pieces that stand for words. For real workers,
`conversations.Conversation` is made of real sentences.
"""
