"""Chaos: jobs of known outcome on several hosts while every part is killed, and a judge of what was seen of them."""
