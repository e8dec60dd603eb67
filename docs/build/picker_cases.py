"""docs/reference/picker-conformance.md: the cases of `warmroute picker-conformance`."""

from __future__ import annotations

from collections.abc import Iterable

from docs.build.tables import MADE, table
from router.picker.conformance.case import REFERENCES, ConformanceCase
from router.picker.conformance.cases import GROUPS
from router.picker.conformance.fixture import CaseProfile
from router.picker.conformance.hook import ACTIONS

_HEAD = f"""\
# Conformance of endpoint pickers

{MADE}
`warmroute picker-conformance HOST:PORT` tests any endpoint picker that Envoy, or a gateway of the Gateway API Inference
Extension (GAIE), asks over ext_proc. It needs no gateway and no cluster: it speaks gRPC as Envoy does, and judges the
picker by its answers. Warmroute itself need not run.

```sh
pip install '.[picker]'    # from a checkout
warmroute picker-conformance 127.0.0.1:9002 --tls \\
  --endpoint 10.0.0.5:8000 --endpoint 10.0.0.6:8000 --endpoint 10.0.0.7:8000 \\
  --hook ./pool.sh --json report.json --markdown report.md
```

Each case has a level. The exit code is 0 if no case of level MUST fails and a case passes, 1 if not, and 2 if an option
is wrong or nothing answers. A case that lacks an endpoint, an option or an action is skipped, and the report says what
it lacks: a skipped case is no evidence. Name all endpoints that may be picked with `--endpoint`.

| profile | cases |
| --- | --- |
| `core` | what every picker does; on by default |
| `streaming` | full duplex, the default of all GAIE gateways; on by default |
| `shedding` | refusals and queues; needs objectives (`--sheddable`, `--urgent`) and a hook |
| `pd` | prefill and decode, and data-parallel ranks |
| `llm-d` | headers, rewrites and scores as llm-d's picker has them |

Name each profile that you want, as in `--profile core --profile streaming --profile shedding`.

## Change the pool: the hook

`--hook COMMAND` names a program of yours. The suite calls it as `COMMAND ACTION ENDPOINT`, and waits up to a minute for
its end. It ends with status 0 when the change is made, and with 3 for an action that it does not know; cases with that
action are then skipped. With any other status the case fails. After each case the suite changes the pool back.

"""

_HOOK = """
In a cluster, membership of the pool is a label. This hook has two actions:

```sh
#!/bin/sh
# pool.sh: change the label by which the InferencePool selects its pods
pod=$(kubectl get pods --namespace models --output name --field-selector "status.podIP=${2%:*}")
case "$1" in
  remove) kubectl label --namespace models "$pod" app- ;;
  add) kubectl label --namespace models "$pod" app=vllm --overwrite ;;
  *) exit 3 ;;
esac
```

## Test the pickers in the field

Forward the ports of the picker's service, and name the pods of its pool. A picker that serves TLS needs `--tls`; any
certificate passes, as with the gateways. `--health` names a port for health without TLS.

| picker | ports by default | options |
| --- | --- | --- |
| GAIE's `lwepp` | 9002 with TLS, health 9003 | `--tls`, `--health` |
| llm-d's | 9002 with TLS, health 9003 | as above, `--model` with a served model, and `--profile llm-d` |
| Dynamo's | as in its chart | `--model` with the served model; it takes chats alone |

```sh
kubectl port-forward --namespace models service/my-picker 9002:9002 9003:9003 &
warmroute picker-conformance 127.0.0.1:9002 --tls --health 127.0.0.1:9003 --model llama --endpoint 10.0.0.5:8000
```

One case, with all that came: `warmroute picker-conformance 127.0.0.1:9002 --case B13`. Pickers that learn from answers
take the suite's picks for requests that were cancelled. Run it against a picker without traffic: H72 opens 1,000
streams, H78 resets 1,000, and H76 ends the picker where the hook offers `drain`.

## What the cases do not show

- Envoy's own behaviour: that a gateway obeys the pick, retries, and ends streams.
- The memory that streams, resets and large bodies cost the picker. H78 sees only that it answers afterwards.
- Whether a pick is good. A10 and A11 see that it depends on load and on the prompt.

## Cases

"""


def page() -> str:
    lines = [*table(("action", "what the hook does"), ((f"`{one}`", text) for one, text in ACTIONS.items()))]
    cases = [line for group in GROUPS for line in _group(group.letter, group.title, group.cases)]
    references = [f"- {letter}: {meaning}." for letter, meaning in REFERENCES.items()]
    counted = {
        profile: sum(case.profile is profile for group in GROUPS for case in group.cases) for profile in CaseProfile
    }
    said = ", ".join(f"{count} of `{profile}`" for profile, count in counted.items())
    head = [f"{sum(counted.values())} cases: {said}. References:", "", *references, ""]
    return _HEAD + "\n".join(lines) + "\n" + _HOOK + "\n".join([*head, *cases]).rstrip() + "\n"


def _group(letter: str, title: str, cases: Iterable[ConformanceCase]) -> list[str]:
    rows = ((f"{letter}{case.number}", *_row(case)) for case in cases)
    heads = ("case", "what a picker does", "level", "profile", "reference", "needs")
    return [f"### {letter}. {title}", "", *table(heads, rows), ""]


def _row(case: ConformanceCase) -> tuple[str, ...]:
    return case.title, case.requirement.value, f"`{case.profile}`", case.reference, _needs(case)


def _needs(case: ConformanceCase) -> str:
    endpoints = [f"{case.endpoints} endpoint{'s' * (case.endpoints > 1)}"] if case.endpoints else []
    return ", ".join([*endpoints, *(f"`{one}`" for one in (*case.given, *case.actions))])
