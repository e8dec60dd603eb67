"""The fleet: endpoints and their candidates, who is healthy, who may be asked, and how many workers are wanted.

`Fleet` holds the endpoints. Nothing here knows of load, of policies or of requests. Used by all of `placement`.
"""
