"""What the client gets and what is kept of it: the relay of bytes, charges, receipts and the line of the log."""
