"""``warmroute check`` reaches Redis and says what it found, for every form and every kind of server."""

import json

import pytest
import trustme

from loadtest.fleet.ports import free_ports
from tests.support.redis import needs_redis
from tests.support.redis_server import SERVERS, redis_cluster, redis_server, sentinels, server_program

pytestmark = needs_redis


@pytest.mark.parametrize("program", SERVERS)
def test_the_server_and_its_version_are_named(inside, program):
    if server_program(program) is None:
        pytest.skip(f"{program} is not installed")
    with redis_server(program=program) as server:
        ran = inside("check", "--set", f"redis.url={server.url}")
    assert ran.returncode == 0
    name, _, major = program.partition("-")
    assert f"Redis at {server.url}: {name} {major}" in ran.stdout and "standalone" in ran.stdout


def test_sentinel_and_cluster_are_reached(inside):
    with sentinels() as found:
        ran = inside("check", "--set", f"redis.url={found.url}")
    assert ran.returncode == 0 and "sentinel: keys, scripts and channels work" in ran.stdout
    with redis_cluster() as url:
        ran = inside("check", "--set", f"redis.url={url}")
    assert ran.returncode == 0 and "cluster: keys, scripts and channels work" in ran.stdout


def test_a_redis_that_is_away_is_named_with_a_fix(inside):
    ran = inside("check", "--json", "--set", f"redis.url=redis://127.0.0.1:{free_ports(1)}")
    assert ran.returncode == 1
    (problem,) = json.loads(ran.stdout)["problems"]
    assert (
        problem["place"] == "redis.url" and "cannot be reached" in problem["problem"] and "redis.url" in problem["fix"]
    )


def test_login_and_permissions_of_the_user_are_tried(inside):
    user = ("--user", "warm", "on", ">secret", "~warmroute:{default}:*", "&warmroute:{default}:*", "+@all")
    with redis_server(("--user", "default", "off", *user)) as server:
        named = ["check", "--set", f"redis.url={server.url}", "--set", "redis.username=warm"]
        assert inside(*named, "--set", "redis.password=secret").returncode == 0
        ran = inside(*named, "--set", "redis.password=wrong")
        assert ran.returncode == 1 and "refuses the login" in ran.stderr and "wrong" not in ran.stderr.split(": ")[-1]
        ran = inside(*named, "--set", "redis.password=secret", "--set", "redis.fleet=other")
        assert ran.returncode == 1 and "lacks a permission" in ran.stderr


def test_tls_trusts_the_given_ca_only(inside, tmp_path):
    ca, stranger = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    stranger.cert_pem.write_to_path(tmp_path / "stranger.pem")
    issued = ca.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    files = ("--tls-cert-file", str(tmp_path / "server.crt"), "--tls-key-file", str(tmp_path / "server.key"))
    port = free_ports(1)
    options = ("--tls-port", str(port), "--tls-ca-cert-file", str(tmp_path / "ca.pem"), "--tls-auth-clients", "no")
    with redis_server((*options, *files)):
        named = ["check", "--set", f"redis.url=rediss://127.0.0.1:{port}"]
        assert inside(*named, "--set", f"redis.ca={tmp_path / 'ca.pem'}").returncode == 0
        ran = inside(*named, "--set", f"redis.ca={tmp_path / 'stranger.pem'}")
    assert ran.returncode == 1 and "ertificate" in ran.stderr
