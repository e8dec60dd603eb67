"""Workloads: requests, their times and their shared text, drawn from seeds. All of `loadtest` uses them.

For virtual time: `source.Source`, a trace file (`trace`, `schemas`) or a generator (`generators`), of which a seed
draws a `plan.Plan`: sessions of calls whose prompts are `text.Text`s, pieces that stand for words. For real workers:
`conversations.Conversation`, made of real sentences.
"""
