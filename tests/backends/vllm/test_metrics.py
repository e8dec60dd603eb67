import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.vllm.metrics import (
    MAX_BLOCK_TOKENS,
    MAX_BLOCKS,
    MAX_SAMPLES,
    STEP_BYTES,
    StrangePage,
    metrics_steps,
    parse_metrics,
)
from backends.worker import LoadReport, RankCache

PAGE = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.75981234567e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{model_name="m",engine="1"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="a}b \\"c\\" {x"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 7.5e-01
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="27896"} 1.0
vllm:cache_config_info{block_size="32",enable_prefix_caching="0",engine="1",hash_block_size="16",num_gpu_blocks="1"} 1
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.234567e+06
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} NaN
"""


def test_ranks_caches_and_loads_are_read():
    page = parse_metrics(PAGE)
    assert page.caches == {0: RankCache(16, 27896, True), 1: RankCache(32, 1, False, 16)}
    assert page.loads == (LoadReport(0, 3, 2, 0.25, 1234567, 1000), LoadReport(1, 1, 0, 0.75))
    assert page.started_s == 1759812345.67
    assert not page.sleeping


def test_the_sleep_state_is_read():
    text = 'vllm:engine_sleep_state{sleep_state="weights_offloaded",engine="0"} 1.0\n'
    assert parse_metrics(text).sleeping
    assert not parse_metrics(text.replace("weights_offloaded", "awake")).sleeping


def test_older_names_are_read_if_the_newer_are_absent():
    old = (
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:gpu_prefix_cache_queries_total{engine="0"} 10\n'
        'vllm:gpu_prefix_cache_hits_total{engine="0"} 4\n'
    )
    assert parse_metrics(old).loads == (LoadReport(0, 0, 0, 0.5, 10, 4),)
    new = old.replace("gpu_cache", "kv_cache").replace("gpu_prefix", "prefix")
    assert parse_metrics(old + new).loads == (LoadReport(0, 0, 0, 0.5, 10, 4),)


def test_no_engine_label_is_rank_zero():
    assert parse_metrics("vllm:num_requests_running 2\n").loads == (LoadReport(0, 2, 0, 0.0),)


def test_ranks_count_within_the_endpoint():
    page = parse_metrics(
        'vllm:num_requests_running{engine="3"} 30\nvllm:num_requests_running{engine="2"} 20\n'
        'vllm:cache_config_info{engine="3",block_size="16",num_gpu_blocks="8"} 1\n'
    )
    assert [(load.rank, load.running) for load in page.loads] == [(0, 20), (1, 30)] and set(page.caches) == {1}


def test_odd_lines_are_skipped():
    page = parse_metrics(
        'vllm:num_requests_running{engine="x"} 1\nvllm:num_requests_running{engine="99999999"} 1\n'
        'vllm:num_requests_running{engine="-1"} 1\nvllm:num_requests_waiting{engine="0"} many\n'
        'vllm:num_requests_waiting{engine="0"} +Inf\nvllm:kv_cache_usage_perc{engine="0" 0.5\n'
        'vllm:cache_config_info{engine="0",block_size="None",num_gpu_blocks="8"} 1\n'
        'xvllm:num_requests_running{engine="0"} 1\n'
    )
    assert page.loads == () and page.caches == {}


@pytest.mark.parametrize("name", ["num_requests_running", "num_requests_waiting", "prefix_cache_queries_total"])
def test_values_whose_sum_overflows_are_skipped(name):
    page = parse_metrics("vllm:num_requests_running 2\n" + f"vllm:{name} 1.7e308\n" * 2 + f"vllm:{name} NaN\n")
    assert [load.running for load in page.loads] == [2] and page.loads[0].waiting == 0


@given(st.text(st.sampled_from('vllm:numrequests_runningcache_config_info{}="\\\n ,01.engine'), max_size=200))
def test_random_text_never_fails(text):
    parse_metrics("vllm:num_requests_running" + text + "\nvllm:cache_config_info" + text)


@pytest.mark.parametrize("unit", ["a", "a ", '"a"', 'a="b",', '"a=', "\\"])
@pytest.mark.parametrize("end", ["", "} 1", '"} 1'])
def test_the_cost_of_a_long_sample_grows_with_its_length(unit, end):
    """Each sample fills a step, and a megabyte of them would take minutes at quadratic cost."""
    sample = "vllm:num_requests_running{" + unit * (16_000 // len(unit)) + end + "\n"
    began_s = time.process_time()
    parse_metrics(sample * 64)
    assert time.process_time() - began_s < 2.0


@pytest.mark.parametrize("break_", ["\n", "\r\n"])
def test_a_page_is_read_in_steps_of_whole_lines(break_):
    lines = [f'vllm:num_requests_running{{engine="{n % 7}",of="{"x" * (n % 90)}"}} {n}' for n in range(3_000)]
    page = break_.join([*lines, "vllm:num_requests_waiting 5"]).encode()
    steps = metrics_steps(page)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            read = end.value
            break
        count += 1
    assert count == pytest.approx(len(page) / STEP_BYTES, abs=2)
    assert sum(load.running for load in read.loads) == sum(range(3_000))
    assert read.loads[0].waiting == 5


def test_a_line_longer_than_a_step_is_skipped():
    long = 'vllm:num_requests_running{of="' + "x" * 3 * STEP_BYTES + '"} 1'
    for lines in ([long, "vllm:num_requests_waiting 2"], ["vllm:num_requests_waiting 2", long]):
        (load,) = parse_metrics("\n".join(lines)).loads
        assert (load.running, load.waiting) == (0, 2)


def test_too_many_samples_are_refused():
    line = 'vllm:num_requests_running{engine="0"} 1\n'
    assert parse_metrics(line * MAX_SAMPLES).loads[0].running == MAX_SAMPLES
    with pytest.raises(StrangePage):
        parse_metrics(line * (MAX_SAMPLES + 1))


def test_a_page_of_a_thousand_lines_is_cheap():
    buckets = "".join(
        f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{i}",model_name="meta-llama/Llama-3.1-8B"}} {i}.0\n'
        for i in range(1000)
    )
    page = buckets + PAGE
    best = min(_timed(page) for _ in range(5))
    assert best < 0.005


def _timed(page):
    start = time.perf_counter()
    parse_metrics(page)
    return time.perf_counter() - start


def test_blocks_summed_over_ranks_are_divided() -> None:
    page = parse_metrics(
        'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="6000",kv_cache_size_tokens="48000"} 1\n'
        'vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="6000",kv_cache_size_tokens="48000"} 1\n'
    )
    assert [cache.num_gpu_blocks for cache in page.caches.values()] == [3000, 3000]


@pytest.mark.parametrize("size", ["-16", "0", "9" * 30, str(MAX_BLOCK_TOKENS + 1)])
def test_an_impossible_block_size_is_ignored(size):
    """The self-test makes a prompt of twice the block size, so a huge block size would make a huge prompt."""
    labels = '{engine="0",block_size="%s",hash_block_size="%s",num_gpu_blocks="8"} 1\n'
    assert parse_metrics("vllm:cache_config_info" + labels % (size, "16")).caches == {}
    assert parse_metrics("vllm:cache_config_info" + labels % ("32", size)).caches == {0: RankCache(32, 8, True)}


def test_an_impossible_number_of_blocks_is_ignored():
    line = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="%d"} 1\n'
    assert parse_metrics(line % MAX_BLOCKS).caches == {0: RankCache(16, MAX_BLOCKS, True)}
    assert parse_metrics(line % (MAX_BLOCKS + 1)).caches == {}
