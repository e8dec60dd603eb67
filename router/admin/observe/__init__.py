"""Operations that only read: decisions, traffic, prefixes, diagnosis, what-if and the audit log."""
