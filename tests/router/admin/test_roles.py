import httpx
import pytest

from router.admin.app import build_admin
from router.admin.table import OPEN_PATHS, OPERATIONS
from router.config.model import Config, to_builtins
from router.security.file_problem import UnusableFileError
from router.security.keys import digest_of
from router.security.token import AdminTokens, Role, TokenSettings, admin_tokens, parse_token

SINGLE = "a-token-of-enough-length"


def token_of(name):
    return f"the-token-of-{name}"


def line(name, role):
    return f"{name} {role} sha256:{digest_of(token_of(name).encode()).hex()}"


LINES = (line("grafana", "read"), line("roller", "operate"), line("alice", "admin"), line("sidecar", "register"))
ROLES = {"grafana": Role.READ, "roller": Role.OPERATE, "sidecar": Role.REGISTER}


def tokens(*entries, token=None, file=None):
    return AdminTokens(TokenSettings(token, None, entries, None if file is None else str(file)))


@pytest.fixture
def ask(system):
    """Call an operation with the token of a name."""
    app = build_admin(system, tokens(*LINES, token=SINGLE))

    async def ask(operation, name):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {SINGLE if name == 'admin_token' else token_of(name)}"}
        body = {"json": {}} if operation.takes is not None else {}
        path = operation.path.replace("{id}", "a:1")
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
            return await client.request(operation.method, path, headers=headers, **body)

    return ask


@pytest.mark.parametrize("name", ["grafana", "roller", "sidecar", "alice", "admin_token"])
async def test_a_role_allows_what_operations_declare(ask, problem, name):
    role = ROLES.get(name, Role.ADMIN)
    for operation in OPERATIONS:
        response = await ask(operation, name)
        if role.includes(operation.role) or operation.path in OPEN_PATHS:
            refused = response.status_code == 403 and "role_not_allowed" in response.text
            assert response.status_code != 401 and not refused, operation.name
            continue
        code, detail = problem(response, 403)
        assert code == "role_not_allowed", operation.name
        assert f"needs a token with the role {operation.role}; the token {name} has the role {role}" in detail


def test_roles_are_declared_as_the_documentation_says():
    roles = {one.name: one.role for one in OPERATIONS if one.path not in OPEN_PATHS}
    assert all(roles[one.name] is Role.READ for one in OPERATIONS if one.method == "GET" and one.name in roles)
    operate = {name for name, role in roles.items() if role is Role.OPERATE}
    assert operate == {"drain_worker", "undrain_worker", "operate_workers", "set_log_level", "make_plan"}
    register = {name for name, role in roles.items() if role is Role.REGISTER}
    assert register == {"register_worker", "deregister_worker"}
    assert {"set_policy", "add_worker", "remove_worker"} <= {n for n, role in roles.items() if role is Role.ADMIN}


async def test_a_refused_role_changes_nothing(ask, system):
    system.join("http://a:1")
    removal = next(one for one in OPERATIONS if one.name == "remove_worker")
    assert (await ask(removal, "roller")).status_code == 403
    assert system.fleet.get("a:1") is not None
    assert (await ask(removal, "alice")).status_code == 204


def test_only_admin_includes_registrations():
    included = {role: {needed for needed in Role if role.includes(needed)} for role in Role}
    assert included == {
        Role.READ: {Role.READ},
        Role.REGISTER: {Role.REGISTER},
        Role.OPERATE: {Role.READ, Role.OPERATE},
        Role.ADMIN: set(Role),
    }


def test_each_token_has_its_name_and_role():
    known = tokens(*LINES, token=SINGLE)
    assert known.caller_of(f"Bearer {token_of('roller')}") == ("roller", Role.OPERATE)
    assert known.caller_of(f"Bearer {SINGLE}") == ("admin_token", Role.ADMIN)
    assert known.caller_of("Bearer another-one-of-length") is None
    assert known.caller_of(f"Basic {token_of('roller')}") is None
    assert known.caller_of("") is None


def test_a_changed_file_is_read_again_and_a_broken_one_is_not_used(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"# for dashboards\n{LINES[0]}\n\n")
    known = tokens(file=file)
    assert known.files == (str(file),)
    assert known.caller_of(f"Bearer {token_of('grafana')}") == ("grafana", Role.READ)
    file.write_text(LINES[2])
    known.load()
    assert known.caller_of(f"Bearer {token_of('grafana')}") is None
    file.write_text("alice owner sha256:" + 64 * "0")
    with pytest.raises(UnusableFileError, match="tokens:1 is not NAME ROLE sha256:HEX"):
        known.load()
    assert known.caller_of(f"Bearer {token_of('alice')}") == ("alice", Role.ADMIN)


def test_a_file_without_entries_admits_nobody(tmp_path):
    (tmp_path / "tokens").write_text("")
    assert tokens(file=tmp_path / "tokens").caller_of(f"Bearer {token_of('alice')}") is None


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([LINES[0], LINES[0].replace("grafana", "other")], "other has the token of grafana"),
        ([LINES[0], line("grafana", "read").replace("read", "admin")], "grafana has the roles read and admin"),
        ([token_of("grafana")], r"admin_tokens\[0\] is not NAME ROLE sha256:HEX"),
        (["grafana read sha256:00"], r"admin_tokens\[0\] is not NAME ROLE sha256:HEX"),
        ([line("admin_token", "read")], "admin_token has the roles admin and read"),
    ],
)
def test_entries_that_contradict_are_refused_without_the_token(entries, problem):
    with pytest.raises(UnusableFileError, match=problem) as refused:
        tokens(*entries, token=SINGLE)
    assert token_of("grafana") not in str(refused.value)


def test_a_name_may_have_two_tokens_of_one_role():
    second = parse_token(line("second", "read"))._replace(name="grafana").line
    known = tokens(LINES[0], second)
    assert known.caller_of(f"Bearer {token_of('second')}") == ("grafana", Role.READ)


def test_settings_show_names_and_roles_and_no_digests():
    shown = to_builtins(Config(admin_tokens=LINES[:1]))["admin_tokens"]
    assert shown == ["grafana read sha256:***"]


def test_without_settings_there_are_no_tokens():
    assert admin_tokens(Config()) is None
    assert admin_tokens(Config(admin_tokens=LINES)) is not None
