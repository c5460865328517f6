"""A whole deployment on one machine: its services, their supervision, and its files."""
