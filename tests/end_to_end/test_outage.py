"""Workers are killed: the gateway's findings say so first, with one process and with several."""

import os
import signal
import subprocess

import pytest

from loadtest.fleet.process import warmroute

FAST = ("--set", "health.probe_interval_s=0.2")


def findings(system):
    return system.admin.get("/admin/v1/diagnosis").json()["findings"]


def diagnosed(system):
    """The exit code of ``warmroute diagnose --exit-code``, and its first line."""
    url = system.running.admin_url
    done = subprocess.run(
        warmroute("diagnose", "--exit-code", "--url", url), capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout.splitlines()[0]


def kill(system, number):
    os.kill(system.running.workers[number].pid, signal.SIGKILL)


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_killed_workers_are_a_degraded_fleet_and_then_an_outage(start, processes):
    system = start(workers=2, serve_flags=(*FAST, "--processes", processes))
    assert diagnosed(system)[0] == 0
    first, second = (url.removeprefix("http://") for url in system.running.worker_urls)
    kill(system, 0)
    (found,) = system.wait_for(lambda: findings(system), what="a finding")
    assert (found["severity"], found["check"], found["which"]) == ("degraded", "worker_unhealthy", [first])
    assert f"{first} is unhealthy: " in found["why"][0] and found["since"] and found["to_try"]
    assert diagnosed(system) == (
        3,
        "DEGRADED, worker unhealthy: Workers cannot be reached, or fail, and get no requests.",
    )
    kill(system, 1)
    system.wait_for(lambda: findings(system)[0]["severity"] == "outage", what="an outage")
    (found,) = findings(system)
    assert found["check"] == "no_worker_ready" and first in found["why"][0] and second in found["why"][0]
    assert diagnosed(system) == (4, "OUTAGE, no worker ready: No worker is ready: every request fails.")
