"""``python -m router.cli.child FD``: one of several processes. Only the supervisor starts it."""

from __future__ import annotations

import sys

from router.app import GatewayProcess
from router.process.children.child import main

if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), GatewayProcess))
