"""``python -m loadtest COMMAND``: benches and simulations, which are not commands of ``warmroute``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the chosen bench."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    try:
        from loadtest.admission import command as admission
        from loadtest.bench import command as bench
        from loadtest.compare import command as compare
        from loadtest.soak import command as soak
        from loadtest.tournament import command as tournament
        from loadtest.tournament import results_digest, sim
    except ModuleNotFoundError as error:
        sys.stderr.write(f"python -m loadtest needs the extra: pip install 'warmroute[loadtest]' ({error})\n")
        return 2
    for name, module in (
        ("admission", admission),
        ("bench", bench),
        ("compare", compare),
        ("sim", sim),
        ("soak", soak),
        ("tournament", tournament),
        ("results-digest", results_digest),
    ):
        text = (module.__doc__ or "").split("\n\n")[0].split(": ", 1)[1].strip()
        command = commands.add_parser(name, help=text, description=module.__doc__)
        module.register(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
