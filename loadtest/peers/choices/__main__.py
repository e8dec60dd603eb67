"""Entry point of ``python -m loadtest.peers.choices``."""

from loadtest.peers.choices.command import main

raise SystemExit(main())
