"""What to do about your training run."""
