"""The HTTP component that every service of sluice uses: serving, problems, tokens, OpenAPI."""
