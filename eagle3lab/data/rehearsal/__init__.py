"""What the rehearsal of a large case runs on: a tiny target of the case's kind, and rows in the columns of its sets."""
