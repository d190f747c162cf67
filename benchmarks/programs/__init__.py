"""Programs that are compared: each is a process that reads one topic until it is stopped."""
