import pytest

from backends.clock.plugin import PLATFORM, platform
from backends.clock.settings import ClockMisconfigured, ClockSettings, read_settings


@pytest.mark.parametrize("value", ["", "0", "true", "yes"])
def test_the_plug_in_is_inert_unless_switched_on(monkeypatch, value):
    monkeypatch.setenv("WARMROUTE_CLOCK", value)
    assert platform() is None
    monkeypatch.delenv("WARMROUTE_CLOCK")
    assert platform() is None


def test_the_switch_activates_the_platform(monkeypatch):
    monkeypatch.setenv("WARMROUTE_CLOCK", "1")
    assert platform() == PLATFORM


def test_settings_survive_the_environment():
    settings = ClockSettings("llama-3.1-8b-a100", 0.0625, 3.0, 2.0, 0.1, 0.004, 7, 0.2)
    assert read_settings(settings.environment()) == settings
    assert read_settings(ClockSettings().environment()) == ClockSettings()
    assert ClockSettings().environment()["WARMROUTE_CLOCK"] == "1"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("PROFILE", "gtx", "write one of llama"),
        ("KV_GIB", "0", "a number of GiB above 0"),
        ("KV_GIB", "inf", "a number of GiB above 0"),
        ("TIME_SCALE", "-1", "at least 0"),
        ("SPEED", "0", "above 0"),
        ("JITTER", "1", "below 1"),
        ("STOP_PROBABILITY", "nan", "from 0 to 1"),
        ("SEED", "x", "a whole number"),
    ],
)
def test_a_bad_value_names_the_variable_and_the_fix(name, text, said):
    with pytest.raises(ClockMisconfigured, match=f"WARMROUTE_CLOCK_{name}={text}: .*{said}"):
        read_settings({f"WARMROUTE_CLOCK_{name}": text})


def test_an_unknown_variable_is_an_error():
    with pytest.raises(ClockMisconfigured, match=r"WARMROUTE_CLOCK_KVGIB is not a setting; the settings are .*KV_GIB"):
        read_settings({"WARMROUTE_CLOCK": "1", "WARMROUTE_CLOCK_KVGIB": "2"})
