import socket

import pytest

from backends.clock.transfers import BlockCall, BlockLoad, BlockSource, Leases, SideChannel
from tests.support.waiting import block_until

PARAMS = {
    "remote_host": "127.0.0.1",
    "remote_port": 1,
    "remote_engine_id": "p",
    "remote_request_id": "r",
    "remote_block_ids": [[1, 2]],
    "tp_size": 1,
}


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def leases(clock):
    return Leases("p", 10.0, clock)


@pytest.fixture
def channel(leases):
    channel = SideChannel("127.0.0.1", leases)
    yield channel
    channel.close()


def source(channel, engine="p"):
    return BlockSource("127.0.0.1", channel.port, engine, "r")


def test_blocks_that_are_read_are_free(leases):
    leases.begin("r")
    assert leases.take_ended() == (set(), 0, 0)
    assert leases.answer(BlockCall("p", "r", done=True)).held
    assert leases.take_ended() == ({"r"}, 0, 0)
    assert leases.take_ended() == (set(), 0, 0)


def test_a_lease_that_nobody_renews_ends(leases, clock):
    leases.begin("r")
    clock.now_s = 9.0
    assert leases.answer(BlockCall("p", "r")).held
    clock.now_s = 18.0
    assert leases.take_ended() == (set(), 0, 0)
    clock.now_s = 19.0
    assert leases.take_ended() == ({"r"}, 1, 0)


def test_a_read_that_ends_after_its_lease_is_counted(leases, clock):
    leases.begin("r")
    clock.now_s = 10.0
    leases.take_ended()
    answer = leases.answer(BlockCall("p", "r", done=True))
    assert (answer.known, answer.held) == (True, False)
    assert leases.take_ended() == (set(), 0, 1)


def test_another_process_does_not_know_the_request(leases):
    leases.begin("r")
    assert not leases.answer(BlockCall("another", "r", done=True)).known
    assert leases.take_ended() == (set(), 0, 0)


def test_a_load_begins_with_its_blocks_and_frees_those_of_the_prefill_worker(leases, channel):
    leases.begin("r")
    load = BlockLoad(source(channel), 10.0)
    assert not load.begun
    load.begin(0.05)
    block_until(lambda: load.ended)
    assert not load.failed and load.took_s >= 0.05
    assert leases.take_ended() == ({"r"}, 0, 0)


@pytest.mark.parametrize("begun", [False, True])
def test_a_load_whose_request_ends_frees_the_blocks_at_once(leases, channel, begun):
    leases.begin("r")
    load = BlockLoad(source(channel), 10.0)
    if begun:
        load.begin(1e6)
    load.leave()
    block_until(lambda: load.ended)
    assert leases.take_ended() == ({"r"}, 0, 0)


def test_a_load_from_another_process_fails(leases, channel):
    leases.begin("r")
    load = BlockLoad(source(channel, engine="another"), 10.0)
    block_until(lambda: load.ended)
    assert load.failed


def test_a_load_from_a_dead_worker_fails():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    load = BlockLoad(BlockSource("127.0.0.1", port, "p", "r"), 10.0)
    block_until(lambda: load.ended)
    assert load.failed


def test_a_renewal_keeps_the_blocks_of_a_waiting_prompt(channel, leases, clock):
    leases.begin("r")
    load = BlockLoad(source(channel), 0.06)
    clock.now_s = 9.0
    block_until(lambda: leases._ends_s["r"] == 19.0)
    load.leave()


@pytest.mark.parametrize("line", [b"no JSON\n", b"{}\n", b"x" * 4_096])
def test_a_call_that_is_none_closes_the_connection(channel, line):
    with socket.create_connection(("127.0.0.1", channel.port), 5.0) as connection:
        connection.sendall(line)
        assert connection.recv(1) == b""


def test_complete_parameters_name_the_source():
    assert BlockSource.of(PARAMS) == BlockSource("127.0.0.1", 1, "p", "r")


@pytest.mark.parametrize("wrong", [*({name: None} for name in PARAMS), {"remote_port": "1"}, {"remote_port": 0}])
def test_incomplete_parameters_name_no_source(wrong):
    assert BlockSource.of(PARAMS | wrong) is None
