"""Real HTTP load, sent by the client in `http`.

`seen` sends and times one request, and classifies its end. `conversations` plays a workload against a URL.
"""
