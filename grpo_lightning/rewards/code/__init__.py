"""Code that is run against unit tests, away from the trainer."""
