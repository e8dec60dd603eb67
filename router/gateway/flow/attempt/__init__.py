"""One attempt at one worker: from its connection to the first token that binds the gateway to it."""
