"""The router: from a client's socket to a worker's and back.

- `gateway`: the data plane, which moves the bytes.
- `placement`: chooses a worker for each request (pure).
- `residency`: knows which worker holds which blocks (pure).
- `tokenization`: turns a request into the identity of its prompt.
- `workers`: probes the workers, follows their KV events and tests both.
- `process`: life cycle, handover of the listening sockets, several processes.
- `limits`: requests and tokens that a key or tenant may use (pure).
- `admin`: the operators' API. `cli`: the commands. `config`: the settings. `security`: keys, TLS, tenants.
- `telemetry`: metrics and logs.

`app.GatewayProcess` is the composition root. Imported by `loadtest`. pyproject.toml holds the order of imports.
"""

import policies  # noqa: F401  its import of numpy must be the first
