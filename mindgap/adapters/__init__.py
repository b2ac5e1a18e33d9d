"""Other people's trainers."""
