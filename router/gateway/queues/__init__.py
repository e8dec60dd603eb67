"""Requests that wait in the gateway: no worker is ready, the policy holds them, or their worker was lost."""
