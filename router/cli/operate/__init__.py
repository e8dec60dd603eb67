"""Commands that read or change a running gateway through its admin API."""
