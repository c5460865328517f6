"""The state of a whole deployment: what is read, what needs attention, and the support bundle."""
