"""Where calls wait in the simulator: the product's own admission, and the queue rules of other routers.

`admission.AdmissionCalls` drives `router.placement.admission` as the gateway does. The others are one file each, with
their source: `flow_control` (llm-d), `policy_classes` (Dynamo) and `priority_slots` (smg). `waiting.WaitingCalls` is
what they share. All of them place calls with the same policy.
"""
