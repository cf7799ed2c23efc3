"""``python -m grpo_lightning check``: what a run would do and whether it would start, on one page, before it does."""
