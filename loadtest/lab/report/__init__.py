"""What a study shows: its page, its tables and its figures."""
