"""The legs of a request that two workers serve, and the plans that choose between them."""
