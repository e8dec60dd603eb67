import io
import stat

import pytest

from router.cli.main import main
from router.config.model import AuthConfig
from router.security.keys import ApiKeys, digest_of, parse_entry
from router.security.token import AdminTokens, Role, TokenSettings

EXISTING = "sk-0123456789abcdefghijklmnop"


def test_a_new_key_and_its_line(capsys):
    assert main(["keys", "new", "alice"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    key, line = first.split()[-1], " ".join(second.split()[-2:])
    assert parse_entry(line).digest == digest_of(key.encode())
    assert parse_entry(line).name == "alice"
    assert key.startswith("wr-") and len(key) == 46


def test_keys_are_added_to_a_file(tmp_path, capsys):
    file = tmp_path / "keys"
    names = ("alice", "bob")
    for name in names:
        assert main(["keys", "new", name, "--file", str(file)]) == 0
    keys = capsys.readouterr().out.split()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    known = ApiKeys(AuthConfig(api_keys_file=str(file)))
    assert [known.name_of(key.encode()) for key in keys] == list(names)
    assert not any(key in file.read_text() for key in keys)


def test_a_file_without_an_end_of_line(tmp_path, capsys, monkeypatch):
    file = tmp_path / "keys"
    main(["keys", "new", "alice"])
    line = " ".join(capsys.readouterr().out.split()[-2:])
    file.write_text(line)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{EXISTING}\n"))
    assert main(["keys", "new", "bob", "--stdin", "--file", str(file)]) == 0
    assert ApiKeys(AuthConfig(api_keys_file=str(file))).name_of(EXISTING.encode()) == "bob"


def test_the_line_of_an_existing_key(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{EXISTING}\n"))
    assert main(["keys", "new", "bob", "--stdin"]) == 0
    out = capsys.readouterr().out
    assert parse_entry(out).digest == digest_of(EXISTING.encode())
    assert EXISTING not in out


@pytest.mark.parametrize("key", ["", "short", "with spaces in it, though long enough", "ü" * 30])
def test_a_key_that_can_be_guessed(capsys, monkeypatch, key):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{key}\n"))
    assert main(["keys", "new", "bob", "--stdin"]) == 2
    said = capsys.readouterr().err
    assert "warmroute keys new" in said
    assert not key or key not in said


def test_a_mistake_names_place_and_fix(tmp_path, capsys):
    (tmp_path / "text").write_text("no keys here")
    for arguments, said in (
        (["new", "a/b"], "'a/b' is not a name"),
        (["new", "a", "--file", str(tmp_path / "text")], "is not NAME sha256:HEX"),
        (["new", "a", "--file", str(tmp_path / "no" / "folder")], "no such file"),
        (["new", "a", "--file", str(tmp_path)], "is a directory"),
    ):
        assert main(["keys", *arguments]) == 2
        captured = capsys.readouterr()
        assert said in captured.err.lower() or said in captured.err
        assert not captured.out


def test_a_role_makes_a_token_of_the_admin_port(tmp_path, capsys):
    file = tmp_path / "tokens"
    assert main(["keys", "new", "grafana", "--role", "read", "--file", str(file)]) == 0
    token = capsys.readouterr().out.strip()
    known = AdminTokens(TokenSettings(None, None, (), str(file)))
    assert known.caller_of(f"Bearer {token}") == ("grafana", Role.READ)
    assert token not in file.read_text()
    assert main(["keys", "new", "alice", "--file", str(file)]) == 2  # a file of tokens holds no API keys
    assert main(["keys", "new", "roller", "--role", "operate"]) == 0
    assert "roller operate sha256:" in capsys.readouterr().out
