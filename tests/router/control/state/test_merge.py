"""The admin API's changes over the settings of the file, and what a reload does to them."""

from msgspec.structs import replace

from router.config.model import Config, PolicyConfig, WorkerConfig
from router.control.state.desired_state import live_settings
from router.control.state.differences import SettingDifference, applied, differences, path_text, undone
from router.control.state.edits import add_worker, remove_worker, set_maintenance, set_policy
from router.control.state.merge import api_changes, merge, reloaded

A, B, C = (WorkerConfig(url=f"http://{name}:1") for name in "abc")


def file(*workers, policy="lpwl"):
    return live_settings(Config(workers=workers, policy=PolicyConfig(rule=policy)))


def test_differences_have_paths_that_an_operator_can_read():
    before, after = {"workers": {"10.0.0.1:8000": {"labels": {"lane": "x", "a b": "1"}}}}, {"workers": {}}
    (found,) = differences(before, {"workers": {"10.0.0.1:8000": {"labels": {"lane": "y", "a b": "1"}}}})
    assert str(found) == 'workers[10.0.0.1:8000].labels.lane: "x" -> "y"'
    assert path_text(("workers", "10.0.0.1:8000", "labels", "a b")) == "workers[10.0.0.1:8000].labels[a b]"
    (gone,) = differences(before, after)
    assert str(gone) == 'workers[10.0.0.1:8000]: {"labels": {"lane": "x", "a b": "1"}} -> nothing'


def test_secrets_are_not_in_the_text_of_a_difference():
    added = add_worker(WorkerConfig(url="http://d:1", api_key="k-5371"))(file(A))
    changes = api_changes(file(A), added)
    changed = SettingDifference(("workers", "d:1", "api_key"), "k-5371", "k-5372")
    assert not any("537" in str(change) for change in (*changes, changed))
    assert str(changed) == 'workers[d:1].api_key: "***" -> "***"'


def test_differences_can_be_applied_and_undone():
    before, after = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}, {"a": {"c": {"d": 4, "f": {}}}, "g": [1]}
    changes = differences(before, after)
    assert applied(before, changes) == after
    assert undone(after, changes) == before
    assert before == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}, "the tree itself does not change"
    assert applied({}, [SettingDifference(("a", "b"), 1)]) == {}, "what is not there stays away"


def test_the_api_wins_over_the_file():
    desired = set_policy(PolicyConfig(rule="random"))(remove_worker("a:1")(add_worker(C)(file(A, B))))
    changes = api_changes(file(A, B), desired)
    assert merge(file(A, B), changes) == desired
    assert [change.place for change in changes] == ["workers[a:1]", "workers[c:1]", "policy"]


def test_a_reload_keeps_what_only_the_api_changed():
    desired = set_maintenance("a:1", True)(add_worker(C)(file(A, B)))
    merged = reloaded(desired, file(A, B), file(A, policy="random"))
    assert merged.conflicts == ()
    assert merged.settings.workers == {"a:1": replace(A, maintenance=True), "c:1": C}
    assert merged.settings.policy.rule == "random"


def test_a_reload_wins_where_the_file_changed_the_same_item():
    desired = set_policy(PolicyConfig(rule="random"))(remove_worker("a:1")(file(A, B)))
    labelled = replace(A, labels={"rack": "7"})
    merged = reloaded(desired, file(A, B), file(labelled, B, policy="round_robin"))
    assert merged.settings == file(labelled, B, policy="round_robin")
    assert [path_text(conflict.path) for conflict in merged.conflicts] == ["workers[a:1]", "policy"]
    assert "the settings, which win (nothing -> {" in str(merged.conflicts[0])


def test_a_drain_and_new_labels_of_one_worker_are_no_conflict():
    labelled = replace(A, labels={"rack": "7"})
    merged = reloaded(set_maintenance("a:1", True)(file(A)), file(A), file(labelled))
    assert merged.conflicts == ()
    assert merged.settings.workers["a:1"] == replace(labelled, maintenance=True)


def test_a_file_that_says_what_the_api_said_is_no_conflict():
    merged = reloaded(add_worker(C)(file(A)), file(A), file(A, C))
    assert (merged.settings, merged.conflicts) == (file(A, C), ())


def test_a_reload_without_a_change_of_the_file_changes_nothing():
    desired = add_worker(C)(file(A, B))
    merged = reloaded(desired, file(A, B), file(A, B))
    assert (merged.settings, merged.conflicts) == (desired, ())
