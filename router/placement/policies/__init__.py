"""The policies in force: how one is run and bounded, the shadow beside it, and the routes that choose between them."""
