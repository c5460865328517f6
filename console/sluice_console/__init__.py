"""The web console: what operators and newcomers open in a browser."""
