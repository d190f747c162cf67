"""Import of histories from elsewhere: files of a known format → messages on the topic `messages`."""
