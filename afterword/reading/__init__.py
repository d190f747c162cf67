"""Reading: what an agent loads of its conversations and finds in them."""
