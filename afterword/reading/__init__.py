"""Reading: what an agent loads of its conversations, and what it finds in them."""
