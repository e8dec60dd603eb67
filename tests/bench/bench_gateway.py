"""CPU of the gateway process per request and per streamed token beside nginx: ``python tests/bench/bench_gateway.py``.

The same as ``python -m loadtest gateway-bench``, which takes the flags.
"""

import sys

from loadtest.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "gateway-bench")
    raise SystemExit(main())
