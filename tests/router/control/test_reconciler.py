import msgspec
import pytest

from router.config.model import PolicyConfig
from router.control.change import NotAppliedError
from router.control.reconciler import Reconciler
from router.control.state.desired_state import DesiredState, live_settings
from router.control.state.edits import add_worker, remove_worker, set_maintenance, set_policy
from tests.router.control.conftest import Process, worker


@pytest.fixture
def process(config):
    return Process(config)


def state(settings, version=2):
    return DesiredState(version=version, lineage="a", settings=settings)


def test_a_second_call_changes_nothing(config, process):
    wanted = set_policy(PolicyConfig(rule="random"))(add_worker(worker(3))(live_settings(config)))
    reconciler = Reconciler(process)
    assert reconciler.reconcile(state(wanted)) == 2
    assert reconciler.reconcile(state(wanted)) == 0
    assert (process.settings, reconciler.version) == (wanted, 2)


def test_it_corrects_what_the_process_has_become(config, process):
    reconciler, wanted = Reconciler(process), live_settings(config)
    reconciler.reconcile(state(wanted))
    became = {"a:2": msgspec.structs.replace(worker(2), maintenance=True), "a:9": worker(9)}
    process.settings = msgspec.structs.replace(process.settings, workers=became)
    assert reconciler.reconcile(state(wanted)) == 3
    assert process.settings == wanted


def test_a_policy_that_cannot_be_built_changes_nothing(config, process):
    process.refuses, before = "random", process.settings
    wanted = set_policy(PolicyConfig(rule="random"))(remove_worker("a:1")(live_settings(config)))
    with pytest.raises(NotAppliedError, match="write another"):
        Reconciler(process).reconcile(state(wanted))
    assert (process.settings, process.calls) == (before, 0)


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_step_that_fails_undoes_the_steps_before(config, process, call):
    before, process.breaks_at = process.settings, call
    wanted = set_policy(PolicyConfig(rule="random"))(
        set_maintenance("a:2", True)(remove_worker("a:1")(add_worker(worker(3))(live_settings(config))))
    )
    with pytest.raises(NotAppliedError, match="broken"):
        Reconciler(process).reconcile(state(wanted))
    assert process.settings == before
