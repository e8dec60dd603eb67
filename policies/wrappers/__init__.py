"""Wrappers around any rule: `hold` keeps requests back, `prefill_lanes` keeps long prefills apart."""
