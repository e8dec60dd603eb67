"""The desired state as values: the document, how two differ or merge, and its revisions. Pure."""
