"""Operations that only read: decisions, traffic, prefixes, diagnosis, what-if, the planner and the audit log."""
