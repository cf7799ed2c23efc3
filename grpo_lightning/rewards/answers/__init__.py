"""The mathematics of answers: where the final one stands in a text, and whether it says the same as the gold one."""
