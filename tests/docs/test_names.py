import re
from pathlib import Path

import msgspec
import pytest

from backends.clock.settings import SWITCH, clock_variables
from backends.discovery.fields import FIELDS
from router.admin.fleet.worker_documents import Worker
from router.admin.openapi import OPENAPI_PATH
from router.admin.table import OPERATIONS
from router.config.schema import settings
from router.config.sources.environment import CONFIG_FILE, variable
from router.metrics.catalogue import CATALOGUE, Kind

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/how-to/*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def exported() -> set[str]:
    names = {spec.exported_name for spec in CATALOGUE}
    parts = ("_bucket", "_sum", "_count")
    return names | {f"{spec.name}{part}" for spec in CATALOGUE if spec.kind is Kind.HISTOGRAM for part in parts}


@every_page
def test_metrics_exist(page):
    named = set(re.findall(r"\bwarmroute_[a-z_]+", page.read_text()))
    labels = {f"warmroute_{field.replace('-', '_')}" for field in FIELDS}  # of a file that a source reads
    assert named <= exported() | labels


@every_page
def test_admin_paths_exist(page):
    known = [re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(operation.path)) for operation in OPERATIONS]
    pattern = re.compile("|".join([*known, re.escape(OPENAPI_PATH)]))
    named = re.findall(r"/admin/v1/[\w:./{}-]*", page.read_text())
    assert [path for path in named if not pattern.fullmatch(path.rstrip(".,:"))] == []


@every_page
def test_variables_exist(page):
    named = set(re.findall(r"\bWARMROUTE_[A-Z_]+", page.read_text()))
    assert named <= {variable(path) for path, _ in settings()} | {CONFIG_FILE, SWITCH} | clock_variables()


def test_the_field_to_wait_for_exists():
    (page,) = (page for page in PAGES if page.name == "roll-out-without-a-lost-request.md")
    named = re.search(r"`(\w+)` in `GET /admin/v1/workers/\{id\}`", page.read_text())[1]
    kinds = {field.name: field.type for field in msgspec.structs.fields(Worker)}
    assert kinds[named] is int
