"""Workloads: seeded generators of conversations and arrivals. Noun: `conversations.Conversation`."""
