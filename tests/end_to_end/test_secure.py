"""Full security: TLS everywhere, keys for clients, a token for operators, and a key for the worker."""

import asyncio
import contextlib
import ssl

import httpx
import openai
import pytest
import trustme

from loadtest.fleet.process import Process, warmroute

MESSAGES = [{"role": "user", "content": "Name three prime numbers."}]
TOKEN = "an-admin-token-of-length"
WORKER_KEY = "the-key-of-the-worker"


class TlsFront:
    """A TLS proxy before the worker. It requires the worker's key on the paths where vLLM does, and keeps all that it
    reads.
    """

    def __init__(self, context, port):
        self._context, self._port = context, port
        self.read = bytearray()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._copy(reader, inner_writer, self.read), self._copy(inner_reader, writer))

    async def _copy(self, reader, writer, kept=None):
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if kept is not None:
                    kept += data
                writer.write(data)
                await writer.drain()
        writer.close()

    def close(self):
        self._server.close()


async def eventually(question, limit_s=30):
    end_s = asyncio.get_running_loop().time() + limit_s
    while not (answer := await question()):
        assert asyncio.get_running_loop().time() < end_s, "did not happen in time"
        await asyncio.sleep(0.05)
    return answer


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.nightly), 2])
async def test_a_secured_gateway_serves_clients_with_keys(processes, tmp_path, count):
    ca = trustme.CA()
    ca_file, pair_file = str(tmp_path / "ca.pem"), str(tmp_path / "both.pem")
    ca.cert_pem.write_to_path(ca_file)
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pair_file)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pair_file)
    context = ssl.create_default_context(cafile=ca_file)

    worker = processes("worker", "--port", "0", "--time-scale", "0.02")
    port = (await asyncio.to_thread(worker.wait_for, r"worker http://[^\s:]+:(\d+)")).group(1)
    front = TlsFront(serving, int(port))
    front_port = await front.start()

    keys = tmp_path / "keys"
    made = processes("keys", "new", "alice", "--file", str(keys))
    key = (await asyncio.to_thread(made.wait_for, r"(wr-\S+)")).group(1)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    config = tmp_path / "warmroute.yaml"
    config.write_text(
        f"host: 127.0.0.1\nport: 0\nadmin_port: 0\nlog_level: debug\naccess_log: true\nprocesses: {count}\n"
        f"auth:\n  api_keys_file: {keys}\nadmin_token_file: {tmp_path / 'token'}\n"
        f"tls: {{cert_file: {pair_file}}}\nadmin_tls: {{cert_file: {pair_file}}}\nworker_tls: {{ca_file: {ca_file}}}\n"
        f"workers:\n  - url: https://127.0.0.1:{front_port}\n    api_key: {WORKER_KEY}\n"
    )
    checked = processes("check", "--config", str(config))
    await asyncio.to_thread(checked.wait_for, "exact|approximate")
    log = tmp_path / "log"
    gateway = Process(warmroute("serve", "--config", str(config)), "warmroute serve", log=log)
    try:
        public = (await asyncio.to_thread(gateway.wait_for, r"public port.*(https://[^\s\"]+)")).group(1)
        admin = (await asyncio.to_thread(gateway.wait_for, r"admin port.*(https://[^\s\"]+)")).group(1)
        await drive(public, admin, key, context)
    finally:
        await asyncio.to_thread(gateway.stop)
        front.close()
    sent = bytes(front.read)
    assert f"authorization: bearer {WORKER_KEY}".encode() in sent.lower()
    assert key.encode() not in sent
    logged = log.read_text()
    assert "key_name=alice" in logged
    for secret in (key, TOKEN, WORKER_KEY, "prime numbers"):
        assert secret not in logged, secret


async def drive(public, admin, key, context):
    operator = httpx.AsyncClient(base_url=admin, verify=context, trust_env=False)
    assert (await operator.get("/admin/v1/workers")).status_code == 401
    assert (await operator.get("/livez")).status_code == 200
    operator.headers["authorization"] = f"Bearer {TOKEN}"

    async def settled():
        ready = (await operator.get("/readyz")).json()
        if ready.get("processes_ready") != ready.get("processes"):
            return False  # the other process does not know the model yet
        (listed,) = (await operator.get("/admin/v1/workers")).json()["workers"]
        return listed["state"] == "ready" and listed["candidates"][0]["residency"] == "exact" and listed

    listed = await eventually(settled)
    model = listed["models"][0]["id"]

    http = httpx.AsyncClient(verify=context, trust_env=False)
    client = openai.AsyncOpenAI(base_url=f"{public}/v1", api_key=key, max_retries=0, http_client=http)
    assert [card.id async for card in client.models.list()] == [model]
    whole = await client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12)
    assert whole.usage.completion_tokens == 12
    stream = await client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, stream=True)
    assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "length"

    stranger = client.with_options(api_key="wr-" + "x" * 43)
    with pytest.raises(openai.AuthenticationError) as refused:
        await stranger.chat.completions.create(model=model, messages=MESSAGES)
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        await stranger.models.list()

    metrics = (await operator.get("/metrics")).text
    assert 'warmroute_requests_by_key_total{key="alice"} 3.0' in metrics
    shown = (await operator.get("/admin/v1/config")).text
    assert WORKER_KEY not in shown
    assert TOKEN not in shown
    with pytest.raises(httpx.RemoteProtocolError):
        async with httpx.AsyncClient(trust_env=False) as plain:
            await plain.get(public.replace("https", "http"))
    await http.aclose()
    await operator.aclose()
