"""Hidden states of a target on disk: shards, index, checksums, resume."""
