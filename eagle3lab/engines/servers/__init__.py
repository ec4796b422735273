"""What servers of every engine share: processes, HTTP, errors, findings, counts. Knows nothing of an engine's flags."""
