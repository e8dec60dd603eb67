import pytest
import trustme

from router.config.model import Config
from router.security.keys import KeyEntry, digest_of, new_key
from router.security.settings import warnings
from router.settings import load

KEY = "wr-" + "k" * 43
LINE = KeyEntry("alice", digest_of(KEY.encode())).line


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files to name: a pair, another key, a CA, an encrypted key, and some that are none of these."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    monkeypatch.chdir(tmp_path)
    ca = trustme.CA()
    ca.cert_pem.write_to_path("ca.pem")
    pair, other = ca.issue_cert("gw.example"), ca.issue_cert("gw.example")
    pair.cert_chain_pems[0].write_to_path("gw.crt")
    pair.private_key_pem.write_to_path("gw.key")
    pair.private_key_and_cert_chain_pem.write_to_path("both.pem")
    other.private_key_pem.write_to_path("other.key")
    key = load_pem_private_key(pair.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"phrase"))
    (tmp_path / "locked.key").write_bytes(encrypted)
    (tmp_path / "garbage.crt").write_text("-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n")
    (tmp_path / "text").write_text("nothing")
    (tmp_path / "keys").write_text(f"# ours\n{LINE}\n")
    (tmp_path / "broken-keys").write_text(f"{LINE}\n{KEY}\n")
    (tmp_path / "same-keys").write_text(f"{LINE}\n{LINE.replace('alice', 'bob')}\n")
    (tmp_path / "token").write_text("word")
    return tmp_path


PLACES = [
    ({"auth.api_keys": KEY}, "auth.api_keys[0] is not NAME sha256:HEX"),
    ({"auth.api_keys": f"{LINE},{LINE.replace('alice', 'bob')}"}, "bob has the key of alice"),
    ({"auth.api_keys_file": "nowhere"}, "cannot read 'nowhere': no such file or directory"),
    ({"auth.api_keys_file": "broken-keys"}, "broken-keys:2 is not NAME sha256:HEX"),
    ({"auth.api_keys_file": "same-keys"}, "bob has the key of alice"),
    ({"auth.api_keys_file": "."}, "cannot read '.': is a directory"),
    ({"admin_token": "short"}, "too short"),
    ({"admin_token": "sha256:00"}, "not 64 hexadecimal digits"),
    ({"admin_token": "***"}, "stands for one that is not shown"),
    ({"admin_token_file": "token"}, "too short"),
    ({"admin_token_file": "nowhere"}, "cannot read 'nowhere'"),
    ({"admin_token": "a-token-of-enough-length", "admin_token_file": "token"}, "are both set"),
    ({"admin_tokens": f"grafana {LINE}"}, "admin_tokens[0] is not NAME ROLE sha256:HEX"),
    ({"admin_tokens_file": "keys"}, "keys:2 is not NAME ROLE sha256:HEX"),
    ({"admin_tokens_file": "nowhere"}, "cannot read 'nowhere'"),
    ({"tls.cert_file": "nowhere"}, "cannot read 'nowhere'"),
    ({"tls.cert_file": "text"}, "'text' holds no PEM certificate"),
    ({"tls.cert_file": "gw.crt"}, "'gw.crt' holds no PEM private key"),
    ({"tls.cert_file": "gw.crt", "tls.key_file": "text"}, "'text' holds no PEM private key"),
    ({"tls.cert_file": "gw.crt", "tls.key_file": "other.key"}, "'other.key' does not belong to the certificate"),
    ({"tls.cert_file": "gw.crt", "tls.key_file": "locked.key"}, "'locked.key' is encrypted"),
    ({"tls.cert_file": "garbage.crt", "tls.key_file": "gw.key"}, "cannot be used"),
    ({"tls.cert_file": "both.pem", "tls.client_ca_file": "text"}, "'text' holds no PEM certificate"),
    ({"tls.cert_file": "both.pem", "tls.client_ca_file": "garbage.crt"}, "cannot be used"),
    ({"tls.key_file": "gw.key"}, "tls.key_file is set, and no tls.cert_file"),
    ({"admin_tls.client_ca_file": "ca.pem"}, "admin_tls.client_ca_file is set"),
    ({"admin_tls.cert_file": "nowhere"}, "cannot read 'nowhere'"),
    ({"tls.cert_file": "both.pem", "uds": "public.sock"}, "a Unix socket (uds) has none"),
    ({"worker_tls.ca_file": "text"}, "'text' holds no PEM certificate"),
    ({"worker_tls.key_file": "gw.key"}, "worker_tls.key_file is set"),
    ({"worker_tls.cert_file": "gw.crt", "worker_tls.key_file": "other.key"}, "does not belong"),
    ({"worker_tls.server_name": "a b"}, "'a b' is not a host name"),
    ({"worker_tls.verify": "false", "worker_tls.ca_file": "ca.pem"}, "nothing is checked"),
]


@pytest.mark.parametrize(("values", "problem"), PLACES)
def test_a_mistake_in_security_settings_names_place_and_fix(files, problems, values, problem):
    found = problems(values)
    assert len(found) == 1
    assert problem in found[0].problem
    assert found[0].fix
    place = found[0].place
    assert any(place in (f"--set {name}", name) for name in values) or place == "--uds", place
    assert KEY not in str(found[0])


@pytest.mark.parametrize("text", [f"auth:\n  api_keys: {KEY}\n", "auth:\n  api_keys: [12345678901]\n"])
def test_a_wrong_type_is_not_repeated(write, problems, text):
    (found,) = problems(file=write("w.yaml", text))
    assert found.place.startswith("w.yaml:2:")
    assert KEY not in str(found)
    assert "12345678901" not in str(found)


def test_valid_security_settings_load(files):
    values = {
        "auth.api_keys_file": "keys",
        "admin_token": "a-token-of-enough-length",
        "tls.cert_file": "both.pem",
        "tls.client_ca_file": "ca.pem",
        "admin_tls.cert_file": "gw.crt",
        "admin_tls.key_file": "gw.key",
        "worker_tls.ca_file": "ca.pem",
        "worker_tls.server_name": "workers.example",
    }
    assert load(values, {}, None).tls.cert_file == "both.pem"


def test_a_key_of_a_name_may_be_replaced_by_another(files):
    second = KeyEntry("alice", digest_of(new_key().encode())).line
    assert len(load({"auth.api_keys": f"{LINE},{second}"}, {}, None).auth.api_keys) == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, []),
        ({"admin_host": "0.0.0.0"}, ["admin_token_file"]),
        ({"admin_host": "::"}, ["admin_token_file"]),
        ({"admin_host": "::1"}, []),
        ({"admin_host": "localhost"}, []),
        ({"admin_host": "router.example"}, ["admin_token_file"]),
        ({"admin_host": "0.0.0.0", "admin_token": "a-token-of-enough-length"}, []),
        ({"admin_host": "0.0.0.0", "admin_tokens": LINE.replace(" ", " read ")}, []),
        ({"worker_tls.verify": "false"}, ["worker_tls.verify is false"]),
    ],
)
def test_an_open_port_is_a_warning(values, said):
    found = list(warnings(load(values, {}, None)))
    assert len(found) == len(said)
    assert all(part in warning for part, warning in zip(said, found, strict=True))


def test_the_defaults_have_no_warning():
    assert list(warnings(Config())) == []
