"""What the crowd term of `marginal_cost` is for: ``python tests/bench/bench_herding.py`` prints one line per run.

400 requests with one 2,000-token prefix, 32 in flight, four modelled workers in virtual time, after 0, 1 or 20 requests
sent alone (so that one worker holds the prefix already).
"""

import argparse
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import policies.marginal_cost as rule  # noqa: E402


def load(name: str):
    """A module of tests/router/placement by file name."""
    spec = spec_from_file_location(name, ROOT / "tests" / "router" / "core" / f"{name}.py")
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(label: str, policy: str, primed: int) -> None:
    """Print the busiest worker's share, the cached share and mean times."""
    fleet = load("conftest").VirtualFleet(policy)
    requests = list(load("test_herding").hot_prefix(400 + primed, (16, 200)))
    fleet.run(requests[:primed], in_flight=1)
    fleet.run(requests[primed:], in_flight=32, start_s=60.0)
    print(
        f"{label:28} primed {primed:2}  busiest {max(fleet.shares.values()):.3f}  cached {fleet.cached_share:.3f}"
        f"  TTFT {fleet.mean_ttft_s * 1e3:5.1f} ms  end to end {fleet.mean_e2e_s:.3f} s"
    )


def slow() -> None:
    """A hot prefix that comes slowly: mean TTFT of the default rule over round robin's, mean of eight seeds."""
    for rate in (5, 10, 20, 40):
        ratios = []
        for seed in range(8):
            ours, theirs = (
                load("conftest").VirtualFleet(policy).run(load("test_herding").hot_prefix(200, (16, 200), seed, rate))
                for policy in ("marginal_cost", "round_robin")
            )
            ratios.append(ours.mean_ttft_s / theirs.mean_ttft_s)
        print(f"{rate:3} requests/s  {sum(ratios) / len(ratios):.3f}  ({min(ratios):.3f} - {max(ratios):.3f})")


def main() -> None:
    """With the term, without it, and other rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", action="store_true", help=slow.__doc__)
    if parser.parse_args().slow:
        slow()
        return
    priced = rule.crowd_prices_s
    for primed in (0, 1, 20):
        run("marginal_cost", "marginal_cost", primed)
    rule.crowd_prices_s = lambda request, fleet, sharing: {}
    for primed in (0, 1, 20):
        run("marginal_cost without crowd", "marginal_cost", primed)
    rule.crowd_prices_s = priced
    for policy in ("lpwl", "least_tokens", "round_robin"):
        run(policy, policy, 20)


if __name__ == "__main__":
    main()
