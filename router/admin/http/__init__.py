"""What every admin operation stands on: the listener, parameters, pages, content types and problem documents."""
