from backends.engine.engine import Engine, EngineRequest
from backends.engine.profile import load_profile
from backends.simulated.settings import shipped_model_dir
from loadtest.fidelity.modelled import EngineSettings, play
from loadtest.fidelity.prompts import prompt_ids
from loadtest.fidelity.scenarios import Arrival, Scenario, pressure
from loadtest.fidelity.virtual import VirtualWorker, unmatched

PROFILE = load_profile("llama-3.1-8b-h100")
SETTINGS = EngineSettings(PROFILE, 4096, async_scheduling=False)


def scenario(*arrivals, **options):
    made = tuple(Arrival(f"r{n}", at_s, (), answer_tokens) for n, (at_s, answer_tokens) in enumerate(arrivals))
    return Scenario("made up", "", made, **options)


def test_one_at_a_time_a_request_arrives_when_the_one_before_has_ended():
    prompts = {"r0": range(100), "r1": range(100)}
    first, second = play(scenario((0.0, 3), (0.0, 3), one_at_a_time=True), prompts, SETTINGS).outcomes
    assert second.arrived_s == first.last_token_s > 0
    assert (first.cached_tokens, second.cached_tokens) == (0, 96)
    assert second.ttft_s < first.ttft_s


def test_with_arrival_times_requests_share_steps():
    prompts = {"r0": range(100), "r1": range(1_000, 1_100)}
    first, second = play(scenario((0.5, 20), (0.5, 20)), prompts, SETTINGS).outcomes
    assert first.arrived_s == second.arrived_s == 0.5
    assert first.first_token_s == second.first_token_s


def test_the_history_knows_what_was_evicted():
    made = pressure(0, conversations=40)
    played = play(made, prompt_ids(made, shipped_model_dir()), EngineSettings(PROFILE, 1500, async_scheduling=True))
    assert played.preemptions > 0
    assert played.history.evictions == played.history.statistics()["evictions"] > 0
    end_s = max(outcome.last_token_s for outcome in played.outcomes)
    copies = [played.history.copies_at(block_hash, end_s) for block_hash in played.history.changes]
    assert min(copies) == 0
    assert 1400 < sum(copies) <= 1499


def test_generated_tokens_match_no_prompt():
    prompts = {"r0": range(32), "r1": [*range(32), *([5] * 32)]}
    _, second = play(scenario((0.0, 40), (5.0, 1)), prompts, SETTINGS).outcomes
    assert second.cached_tokens == 32


def test_a_worker_counts_a_waiting_request_as_four_running():
    worker = VirtualWorker(Engine(PROFILE, sample=unmatched, max_num_seqs=1, jitter=0.0))
    for number in range(3):
        worker.arrive(EngineRequest(str(number), range(20), 5), 0.0)
    worker.run_until(1e-6)
    assert worker.load == 1 + 2 * 4
    worker.finish()
    assert (worker.load, worker.statistics()["finished_length"]) == (0, 3)
    assert worker.now_s > 0.05
