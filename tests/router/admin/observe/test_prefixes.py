from router.admin.observe.prefixes import PrefixDocument, Prefixes, list_prefixes
from router.placement.request import Request, Usage
from router.residency.prompt import Prompt, PromptSource
from tests.router.admin.conftest import over_processes

SHARED = [10_000 + number for number in range(6)]


def request(system, name):
    chain = [*SHARED, hash(name) & 0xFFFF_FFFF]
    prompt = Prompt(7 * 16 + 3, PromptSource.RENDERED, lambda block: chain)
    return Request(name, "/v1/completions", "m", prompt, 7 * 16 + 3, system.clock_s)


async def test_a_prefix_that_first_turns_share_is_listed_without_text(client, system):
    system.join("http://a:1")
    for number in range(4):
        ticket = system.core.dispatcher.dispatch(request(system, f"r{number}"), system.clock_s)
        system.core.tickets.first_token(ticket, system.clock_s + 0.1)
        system.core.tickets.finished(ticket, Usage(115, 5, None), system.clock_s + 0.2)
    (found,) = (await client.get("/admin/v1/prefixes")).json()["prefixes"]
    assert (found["hash"], found["tokens"], found["hits"]) == (f"{SHARED[-1]:016x}", 96, 3.0)
    assert found["saved_tokens"] == 288 and found["copies"] == len(found["workers"])


def one(block_hash, saved):
    return PrefixDocument(
        hash=block_hash, tokens=16, hits=1.0, saved_tokens=saved, copies=1, kv_tokens=16, workers=["a:1"]
    )


def merged(*parts):
    documents = [Prefixes(prefixes=part) for part in parts]
    return over_processes(list_prefixes, documents, limit=1).prefixes


def test_processes_add_their_hits():
    found = merged([one("a", 10), one("b", 30)], [one("a", 25)])
    assert [(each.hash, each.hits, each.saved_tokens) for each in found] == [("a", 2.0, 35)]
