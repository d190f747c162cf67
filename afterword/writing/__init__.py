"""Writing: sends messages to the topic `messages`, from services, files and other products' histories."""
