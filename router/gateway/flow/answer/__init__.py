"""What the client gets of an answer: the relay of its bytes."""
