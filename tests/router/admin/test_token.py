import httpx
import msgspec
import pytest

from router.admin.app import build_admin
from router.admin.table import OPERATIONS
from router.config.model import Config
from router.security.file_problem import UnusableFileError
from router.security.keys import digest_of
from router.security.token import AdminTokens, TokenSettings

TOKEN = "a-token-of-enough-length"
HASHED = "sha256:" + digest_of(TOKEN.encode()).hex()


@pytest.fixture
def ask(system):
    """Call the port as configured, with a token of `TOKEN` unless another is given."""

    async def ask(method, path, authorization=None, *, token=TOKEN, **settings):
        system.config = msgspec.structs.replace(Config(), **settings)
        app = build_admin(system, AdminTokens(TokenSettings(token, None)))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = [("authorization", each) for each in authorization or ()]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
            return await client.request(method, path, headers=headers)

    return ask


async def test_every_path_but_health_needs_the_token(ask, problem):
    paths = {(operation.method, operation.path) for operation in OPERATIONS} | {("GET", "/admin/v1/openapi.json")}
    for method, path in sorted(paths):
        response = await ask(method, path.replace("{id}", "a:1"))
        if path in ("/livez", "/readyz"):
            assert response.status_code != 401, path
        else:
            assert problem(response, 401)[0] == "unauthorized", path
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("token", [TOKEN, HASHED])
async def test_the_token_opens_the_admin_api(ask, token):
    assert (await ask("GET", "/admin/v1/workers", [f"Bearer {TOKEN}"], token=token)).status_code == 200
    assert (await ask("GET", "/admin/v1/workers", [f"bearer  {TOKEN}"], token=token)).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [["Bearer wrong"], [TOKEN], [f"Basic {TOKEN}"], [f"Bearer {HASHED}"], [f"Bearer {TOKEN}"] * 2, [""], ["Bearer"]],
)
async def test_another_token_gets_401(ask, authorization):
    assert (await ask("GET", "/admin/v1/workers", authorization)).status_code == 401
    assert (await ask("GET", "/no/such/path", authorization)).status_code == 401


async def test_metrics_can_be_opened(ask):
    assert (await ask("GET", "/metrics")).status_code == 401
    opened = await ask("GET", "/metrics", admin_metrics_open=True)
    assert opened.status_code == 200
    assert (await ask("GET", "/admin/v1/config", admin_metrics_open=True)).status_code == 401


async def test_config_does_not_show_the_token(ask):
    shown = await ask("GET", "/admin/v1/config", [f"Bearer {TOKEN}"], admin_token=TOKEN)
    assert shown.json()["admin_token"] == "***"
    assert TOKEN not in shown.text


def test_a_file_that_changes(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    token = AdminTokens(TokenSettings(None, str(file)))
    assert token.caller_of(f"Bearer {TOKEN}")
    file.write_text("another-token-of-length")
    token.load()
    assert not token.caller_of(f"Bearer {TOKEN}")
    for broken in ("", "short", "two words of enough length", "sha256:abc"):
        file.write_text(broken)
        with pytest.raises(UnusableFileError):
            token.load()
        assert token.caller_of("Bearer another-token-of-length")
