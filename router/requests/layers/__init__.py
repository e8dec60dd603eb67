"""Features that every front may put around a request, a folder each."""
