from router.placement.request import Usage


async def test_served_requests_are_in_the_figures(client, system):
    system.join("http://a:1")
    for number in range(3):
        ticket = system.core.dispatcher.dispatch(system.request(f"r{number}", 2_000), system.clock_s)
        system.core.tickets.first_token(ticket, system.clock_s + 0.5)
        system.core.tickets.progress(ticket, 32, [0.01] * 31, system.clock_s + 1.0)
        system.core.tickets.finished(ticket, Usage(2_000, 32, 0), system.clock_s + 1.0)
    answer = await client.get("/admin/v1/diagnosis")
    assert answer.status_code == 200
    document = answer.json()
    assert (document["requests"], document["findings"], document["service_levels"]) == (3, [], [])
    figures = {figure["caption"]: figure["rows"] for figure in document["figures"]}
    assert ["1,025 to 4,096", 3] in figures["Prompts by length"]
    assert ["17 to 64", 3] in figures["Answers by length"]
    (row,) = figures["Time to first token by prompt length"]
    assert row[:2] == ["1,025 to 4,096", 3] and row[4] == 0.5
    gaps = figures["Gaps between tokens by worker, without a long prompt in prefill there"]
    assert gaps[0][0] == "a:1" and 0.005 <= gaps[0][1] <= 0.01
    assert document["thresholds"]["gap_s"] == 0.1
    assert len(document["unsure"]) == 5


async def test_the_diagnosis_takes_no_parameters(client):
    assert (await client.get("/admin/v1/diagnosis?minutes=5")).status_code == 400
