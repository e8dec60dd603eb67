"""``python -m loadtest COMMAND``: benches that are not part of the product's own command line."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Parse the command line and run the chosen bench."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    bench = commands.add_parser("gateway-bench", help="the gateway's CPU cost beside nginx")
    try:
        from loadtest.bench import gateway
    except ModuleNotFoundError as error:
        sys.stderr.write(f"python -m loadtest needs the extra: pip install 'warmroute[loadtest]' ({error})\n")
        return 2
    gateway.register(bench)
    args = parser.parse_args()
    return gateway.run(args)


if __name__ == "__main__":
    raise SystemExit(main())
