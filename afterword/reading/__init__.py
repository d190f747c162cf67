"""Reading: loads an agent's conversations and searches them."""
