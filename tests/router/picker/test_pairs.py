from types import SimpleNamespace

import pytest

from router.picker.pairs import MovedCache

pytestmark = pytest.mark.source_only


@pytest.mark.parametrize(
    ("kind", "name"), [("pull", "x-kv-cache-source-host-port"), ("handover", "x-prefiller-host-port")]
)
def test_the_other_worker_is_named_in_the_header_that_the_sidecar_reads(kind, name):
    source = SimpleNamespace(endpoint=SimpleNamespace(id="10.0.0.3:8000"))
    moved = MovedCache(None, None, SimpleNamespace(kind=kind, source=source), SimpleNamespace(prefill=None))
    assert moved.header == (name, b"10.0.0.3:8000")
    moved.release()
    moved.cancel()
