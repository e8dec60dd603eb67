"""What a request asks for: its model, its prompt and the level of service."""
