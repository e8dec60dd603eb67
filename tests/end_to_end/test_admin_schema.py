"""schemathesis over the whole OpenAPI document of the admin port, against running gateways."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from router.admin.table import OPERATIONS

pytestmark = pytest.mark.slow

OPERATED = "pause,resume,reset-prefix-cache,load-lora,unload-lora"
KEYS = f"nightly sha256:{1:064x}"
"""A key, so that there can be tenants."""
SETTINGS = """
[checks]
# 422: the value fits the schema, and means nothing here, such as an unknown policy. 410, 412: an old cursor or tag.
positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 410, 412, 422]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 410, 412, 413, 415, 422]

[[operations]]
# answers as the public port would answer the request that the body holds
include-operation-id = "explain"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409, 412, 413, 415, 422]

[[operations]]
# 503: another test has taken the last worker away
include-operation-id = "probe_routing"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409, 412, 413, 415, 422, 429, 503]
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", 503]
"""


def run(system, folder: Path, examples: int) -> subprocess.CompletedProcess:
    settings = folder / "schemathesis.toml"
    settings.write_text(SETTINGS)
    root = Path(__file__).parents[2]
    environment = {
        **os.environ, "SCHEMATHESIS_HOOKS": "tests.end_to_end.schemathesis_hooks", "PYTHONPATH": str(root)
    }  # fmt: skip
    command = [Path(sys.executable).with_name("schemathesis"), "--config-file", settings, "run"]
    command += [f"{system.running.admin_url}/admin/v1/openapi.json", "--checks", "all", "--max-examples", str(examples)]
    command += ["--continue-on-failure", "--request-timeout", "20", "--seed", "1", "--warnings", "off"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=380)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("processes", "examples"), [pytest.param(1, 15, marks=pytest.mark.nightly), (2, 8)])
def test_every_answer_conforms_to_the_document(start, tmp_path, processes, examples):
    flags = ("--processes", str(processes), "--set", f"worker_operations={OPERATED}", "--set", f"auth.api_keys={KEYS}")
    system = start(worker_flags=("--time-scale", "0.02", "--dev-mode", "--runtime-lora"), serve_flags=flags)
    report = run(system, tmp_path, examples)
    assert report.returncode == 0, report.stdout[-20_000:] + report.stderr[-2_000:]
    assert "No issues found" in report.stdout, report.stdout
    assert f"Tested: {len(OPERATIONS)}" in report.stdout, report.stdout
    entries = system.admin.get("/admin/v1/audit?limit=1000").json()["entries"]
    assert {"done", "refused"} <= {entry["outcome"] for entry in entries}
    assert not [entry for entry in entries if entry["outcome"] == "failed"]
