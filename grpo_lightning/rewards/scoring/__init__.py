"""How reward functions are called, checked and put together."""
