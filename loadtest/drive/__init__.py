"""Real HTTP load, sent by the client in `http`.

`chat` sends and times one request. `seen` sends one and classifies its end. `conversations` plays a workload against a
URL.
"""
