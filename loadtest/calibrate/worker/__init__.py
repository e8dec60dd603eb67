"""A profile from 18 requests to a running worker.

`facts` is what the worker says of itself, `plan` which steps to measure within its limits, `calls` sends the requests,
`tokens` makes readings of the times of streamed tokens, and `measure` carries the plan out.
"""
