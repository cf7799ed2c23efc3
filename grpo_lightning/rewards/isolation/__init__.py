"""Calls in processes that can be killed: the pool, the server that forks and times its workers, the workers."""
