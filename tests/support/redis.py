"""Marks of tests that need real Redis servers."""

import pytest

from tests.support.redis_server import server_program

needs_redis = pytest.mark.skipif(server_program() is None, reason="no redis-server: apt-get install redis-server")
