"""The push requests of Loki."""
