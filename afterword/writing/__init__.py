"""Writing: messages on their way to the topic `messages`, from services, files and histories of elsewhere."""
