import pytest

WORKERS, ROUTES, LEVEL = "/admin/v1/workers", "/admin/v1/routes", "/admin/v1/log-level"


@pytest.mark.parametrize(
    ("method", "url", "body", "said"),
    [
        ("PUT", LEVEL, {"level": "loud"}, "`$.level`; write one of debug, error, info, warning"),
        ("POST", WORKERS, {"url": "http://a:1", "wieght": 2}, "unknown field `wieght`; did you mean weight?"),
        ("POST", WORKERS, {"url": "http://a:1", "zzzzz": 2}, "`zzzzz`; write one of url, "),
        ("POST", WORKERS, {"url": "http://a:1", "weight": "x"}, "`$.weight`; write a number"),
        ("PUT", ROUTES, {"routes": [{"name": "a", "match": {"stream": 4}}]}, "; write true or false"),
        (
            "PUT",
            ROUTES,
            {"routes": [{"name": "a", "quue_s": 4}]},
            "`$.routes[0]`; did you mean queue_s?",
        ),
        ("PUT", ROUTES, {"routes": {}}, "write a list"),
        ("POST", WORKERS, {"url": "localhost"}, "'localhost' has no port; write http://localhost:8000"),
        ("POST", WORKERS, {"url": "ftp://a", "labels": {"lane": "left"}}, "'left' is no lane"),
        ("POST", WORKERS, {"url": "ftp://a", "labels": {"lane": "left"}}, "has scheme 'ftp'"),
        ("PUT", "/admin/v1/policy", [], "the body does not fit: Expected `object`"),
    ],
)
async def test_the_problem_names_the_values_or_fields(client, problem, method, url, body, said):
    assert said in problem(await client.request(method, url, json=body), 422)[1]
