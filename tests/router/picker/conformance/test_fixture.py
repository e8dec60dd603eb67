import pytest

from router.picker.conformance.fixture import Fixture, Given, parse_endpoint


@pytest.mark.parametrize(
    ("text", "usual"),
    [
        ("10.0.0.5:8000", "10.0.0.5:8000"),
        (" 10.0.0.5:08000", "10.0.0.5:8000"),
        ("[FD00:0::5]:8000", "[fd00::5]:8000"),
    ],
)
def test_an_endpoint_gets_its_usual_spelling(text, usual):
    assert parse_endpoint(text) == usual


@pytest.mark.parametrize(
    "text", ["10.0.0.5", "fd00::5:8000", "[10.0.0.5]:80", "worker:8000", "10.0.0.5:0", "10.0.0.5:x"]
)
def test_what_is_no_endpoint(text):
    with pytest.raises(ValueError, match=r"address|port"):
        parse_endpoint(text)


@pytest.mark.parametrize("option", list(Given))
def test_a_fixture_has_no_option_by_default(option):
    assert not Fixture(target="").has(option)
