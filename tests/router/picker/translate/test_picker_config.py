from __future__ import annotations

import pytest

from router.config.problems import ConfigError
from router.picker.translate.picker_config import VERSIONS, read_picker_config

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_group_is_read(version: str) -> None:
    config = read_picker_config(f"apiVersion: {version}\nkind: EndpointPickerConfig\nplugins: [{{type: a}}]", "f")
    assert [plugin.name for plugin in config.plugins] == ["a"] and config.assumed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "f:1:.*not YAML"),
        ("7", "f:1:1: not a mapping; write a file of the kind EndpointPickerConfig"),
        ("kind: ConfigMap", "f:1:1: kind is 'ConfigMap'; give a file whose kind"),
        ("plugins: []", "kind is missing; .* such as the text that a ConfigMap or Helm values hold"),
        ("apiVersion: v1\nkind: EndpointPickerConfig", "f:1:1: apiVersion is 'v1'; write one of llm-d.ai/v1alpha1"),
        (HEAD + "schedulingProfile: []", "f:3:1: schedulingProfile is no key .*; did you mean schedulingProfiles?"),
        (HEAD + "plugins: {}", "f:3:1: plugins is no list; write a list"),
        (HEAD + "plugins: [7]", r"f:3:11: plugins\[0\] is no mapping"),
        (HEAD + "plugins:\n- name: a", r"f:4:3: plugins\[0\].type is missing; write type"),
        (HEAD + "plugins: [{type: 7}]", r"plugins\[0\].type is no text"),
        (
            HEAD + "plugins: [{type: a, paramters: {}}]",
            r"plugins\[0\].paramters is no key .*; did you mean parameters?",
        ),
        (HEAD + "plugins: [{type: a, parameters: 7}]", r"plugins\[0\].parameters is no mapping"),
        (HEAD + "plugins: [{type: a}, {type: a}]", r"plugins\[1\]: 'a' is a plugin already \(plugins\[0\]\)"),
        (HEAD + "featureGates: [a=7]", r"featureGates\[0\] is 'a=7'; write NAME"),
        (HEAD + "featureGates: [{a: 1}]", r"featureGates\[0\] is"),
        (HEAD + "schedulingProfiles: [{plugins: []}]", r"schedulingProfiles\[0\].name is missing"),
        (
            HEAD
            + "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-score}]}]",
            r"f:4:43: .*plugins\[0\].pluginRef: no plugin is named 'queue-score'; did you mean queue-scorer?",
        ),
        (
            HEAD + "plugins: [{type: a}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: a, weight: -1}]}]",
            r"plugins\[0\].weight is -1; write a number from 0",
        ),
        (HEAD + "dataLayer: {discovery: {pluginRef: x}}", "dataLayer.discovery.pluginRef: no plugin is named 'x'"),
        (HEAD + "flowControl: {usageLimitPolicyPluginRef: x}", "no plugin is named 'x'; name one of `plugins`"),
        (HEAD + "plugins: []\nplugins: []", "f:4:1: plugins is given twice"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_picker_config(text, "f")


def test_all_mistakes_come_at_once_in_the_order_of_the_file() -> None:
    with pytest.raises(ConfigError) as error:
        read_picker_config(HEAD + "plugins:\n- {}\n- {type: a, x: 1}\nother: 1", "f")
    assert [one.place for one in error.value.problems] == ["f:4:3", "f:5:13", "f:6:1"]


def test_a_parameter_is_found_by_its_path() -> None:
    (plugin,) = read_picker_config(HEAD + "plugins: [{type: a, parameters: {b: {c: 1}}}]", "f").plugins
    assert (plugin.of("b.c"), plugin.of("b.d"), plugin.of("b.c.d"), plugin.of("x")) == (1, None, None, None)


def test_the_detector_of_flow_control_needs_no_plugin() -> None:
    text = HEAD + "flowControl: {saturationDetector: {pluginRef: utilization-detector}}"
    assert read_picker_config(text, "f").plugins == ()
