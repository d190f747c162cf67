"""The Faust applications and the engine beneath them."""
